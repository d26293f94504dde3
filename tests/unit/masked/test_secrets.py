from __future__ import annotations

import os

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.masked.secrets import (
    KEY,
    agreed,
    agreement_public,
    boxed,
    derive,
    digest,
    from_system,
    is_signed,
    sign,
    signing_public,
    stream,
    unboxed,
)

PARTS = st.lists(st.one_of(st.text(max_size=5), st.integers(0, 99), st.binary(max_size=5)), max_size=4)


@given(PARTS, PARTS)
def test_no_two_lists_of_parts_read_alike(one: list[str | int | bytes], other: list[str | int | bytes]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


def test_a_secret_for_one_purpose_is_none_for_another() -> None:
    secret = from_system("test")
    assert derive(secret, "mask", b"1") == derive(secret, "mask", b"1")
    assert len({derive(secret, *purpose) for purpose in (("a",), ("b",), ("a", 1), ("a", "1"), ("a1",))}) == 5


def test_stream_is_aes_in_counter_mode_from_zero() -> None:
    key = bytes(32)
    assert stream(key, 16).hex() == "dc95c078a2408989ad48a21492842087"  # FIPS 197, zero key and block
    assert stream(key, 40)[:16] == stream(key, 16)
    assert len(stream(key, 7)) == 7


def test_two_sides_agree_and_a_third_does_not() -> None:
    one, other, third = (os.urandom(KEY) for _ in range(3))
    both = agreed(one, agreement_public(other))
    assert both == agreed(other, agreement_public(one))
    assert both != agreed(third, agreement_public(one))
    assert agreed(one, bytes(KEY)) is None  # a point of small order gives away nothing
    assert agreed(one, b"short") is None


def test_signature_holds_for_what_was_signed_alone() -> None:
    key, stranger = os.urandom(KEY), os.urandom(KEY)
    made = sign(key, "run", 1, b"x")
    assert is_signed(signing_public(key), made, "run", 1, b"x")
    assert not is_signed(signing_public(key), made, "run", 2, b"x")
    assert not is_signed(signing_public(stranger), made, "run", 1, b"x")
    assert not is_signed(b"no key", made, "run", 1, b"x")
    assert not is_signed(signing_public(key), b"no signature", "run", 1, b"x")


def test_box_opens_for_its_key_and_unchanged_alone() -> None:
    key = os.urandom(KEY)
    box = boxed(key, b"secret")
    assert unboxed(key, box) == b"secret"
    assert box == AESGCM(key).encrypt(bytes(12), b"secret", None)
    assert unboxed(os.urandom(KEY), box) is None
    assert unboxed(key, box[:-1] + bytes([box[-1] ^ 1])) is None
    assert unboxed(key, b"") is None

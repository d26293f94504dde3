from __future__ import annotations

from pathlib import Path

import pytest

from dqnfed_flwr.data.user import call_function
from dqnfed_flwr.errors import ConfigError, DataError, ModelError


def test_imports_the_function_named() -> None:
    assert call_function("math:sqrt", "data", DataError, 9) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_here:load", r"model: .*module 'no_such_module_here' cannot be imported.*PYTHONPATH"),
        (":load", "module '' cannot be imported"),
        ("math:", "module 'math' has no ''; its functions and classes are: acos, acosh, "),
        ("math:pi", "module 'math' has no 'pi'; "),
    ],
)
def test_what_cannot_be_imported_is_named(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        call_function(name, "model", ModelError)


MODULE = """
def misses(first):
    return {}["site"]


def narrow(first):
    return first


def refuses(first):
    from dqnfed_flwr.errors import ConfigError
    raise ConfigError("mine to say")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_functions.py").write_text(MODULE)
    (tmp_path / "broken_module.py").write_text("import math\nmath.no_such_name\n")
    (tmp_path / "needy_module.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own")
def test_what_a_function_raises_is_one_line_with_its_place() -> None:
    with pytest.raises(DataError) as raised:
        call_function("own_functions:misses", "data", DataError, 1)
    assert str(raised.value) == "data: own_functions:misses raised KeyError: 'site' (own_functions.py, line 3)"
    with pytest.raises(ModelError) as raised_by_call:
        call_function("own_functions:narrow", "model", ModelError, 1, 2)
    assert str(raised_by_call.value) == (
        "model: own_functions:narrow raised TypeError: narrow() takes 1 positional argument but 2 were given "
        "(own_functions.py, line 6)"
    )
    assert call_function("own_functions:narrow", "model", ModelError, 7) == 7


@pytest.mark.usefixtures("own")
def test_errors_of_this_package_stay_as_they_are() -> None:
    with pytest.raises(ConfigError, match=r"^mine to say$"):
        call_function("own_functions:refuses", "data", DataError, 1)


@pytest.mark.usefixtures("own")
def test_a_module_that_fails_while_it_is_imported_is_named() -> None:
    with pytest.raises(DataError, match=r"'broken_module' cannot be imported \(AttributeError: .*no_such_name"):
        call_function("broken_module:data", "data", DataError)
    with pytest.raises(
        DataError, match=r"No module named 'no_such_library'\); its file was found: see to what it does"
    ):
        call_function("needy_module:data", "data", DataError)

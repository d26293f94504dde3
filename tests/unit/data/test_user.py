from __future__ import annotations

import pytest

from dqnfed_flwr.data.user import import_function
from dqnfed_flwr.errors import DataError, ModelError


def test_imports_the_function_named() -> None:
    assert import_function("math:sqrt", "data", DataError)(9) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_here:load", r"model: .*module 'no_such_module_here' cannot be imported.*PYTHONPATH"),
        (":load", "module '' cannot be imported"),
        ("math:", "module 'math' has no function ''; write module:function"),
        ("math:pi", "module 'math' has no function 'pi'"),
    ],
)
def test_what_cannot_be_imported_is_named(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_function(name, "model", ModelError)

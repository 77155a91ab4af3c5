import pytest

from tools.distribution.import_mapping import MappingError, map_imports

PACKAGES = {"storage": "shipped.storage", "protocol": "shipped.protocol"}


def mapped(source: str) -> str:
    return map_imports(source, PACKAGES, where="a.py", modules=("storage.model", "storage.errors"))


MAPPED = [
    ("from storage.model import A, B", "from shipped.storage.model import A, B"),
    ("from  storage import model", "from  shipped.storage import model"),
    ("import storage.model as model", "import shipped.storage.model as model"),
    ("import os, storage.model as m, sys", "import os, shipped.storage.model as m, sys"),
    ("import os; import storage as s", "import os; import shipped.storage as s"),
    ('importlib.import_module("storage.model")', 'importlib.import_module("shipped.storage.model")'),
    ('import_module(f"storage.{kind}_job")', 'import_module(f"shipped.storage.{kind}_job")'),
    ("import_module('storage.errors')", "import_module('shipped.storage.errors')"),
    ('x = "é"; from storage.model import A', 'x = "é"; from shipped.storage.model import A'),
    ("from storage.model import (  # why\n    A,\n)", "from shipped.storage.model import (  # why\n    A,\n)"),
]
LEFT_ALONE = [
    "from storages.model import A",
    "import os.path, storage_of_mine",
    "from mine.storage import model",
    'KEY = "storage.root"',
    'importlib.import_module("numpy")',
    '"""From storage.model import A; storage.model is a module."""',
    "storage = 1\nprint(storage.real)",
]
REFUSED = [
    ("import storage.model", "a.py:1: `import storage.model` binds a name"),
    ("\nimport storage", "a.py:2: `import storage` binds a name"),
    ("from . import model", "a.py:1: a relative import"),
    ("from \\\n storage.model import A", "a.py:1: the module's name is not on the line"),
    ('__import__("storage.model")', "a.py:1: __import__ cannot be mapped"),
    ("import_module(name)", "a.py:1: import_module of what is no plain string"),
    ('import_module(f"{name}.storage")', "a.py:1: import_module of what is no plain string"),
    ('import_module(f"stora{name}")', "a.py:1: import_module of what is no plain string"),
    ('import_module("." + name)', "a.py:1: import_module of what is no plain string"),
    ('import_module(".model", "storage")', "a.py:1: import_module with anything but one argument"),
    (r'import_module("st\x6frage.model")', "a.py:1: a module's name must be written as a plain string"),
    ('find_spec("storage.model")', "a.py:1: the string 'storage.model' names a module of ours"),
]


def test_an_import_of_ours_is_mapped_where_it_stands_and_nothing_else() -> None:
    assert [mapped(source) for source, _ in MAPPED] == [wanted for _, wanted in MAPPED]
    assert [mapped(source) for source in LEFT_ALONE] == LEFT_ALONE


def test_what_cannot_be_mapped_fails_with_file_and_line() -> None:
    for source, said in REFUSED:
        with pytest.raises(MappingError) as caught:
            mapped(source)
        assert str(caught.value).startswith(said)


def test_a_logger_keeps_the_name_that_its_module_has_in_the_tree() -> None:
    source = 'log = logging.getLogger(__name__); other = get_logger("a", __name__); print(__name__)\n'
    kept = 'log = logging.getLogger("storage.model"); other = get_logger("a", __name__); print(__name__)\n'
    assert map_imports(source, PACKAGES, where="a.py", logger="storage.model") == kept

"""The stubs say what is there."""

import ast
from pathlib import Path

import batchfs
from batchfs import _native


def stub():
    path = Path(batchfs.__file__).with_name("_native.pyi")
    return {n.name: n for n in ast.parse(path.read_text()).body if hasattr(n, "name")}


def test_every_name_of_the_compiled_module_has_a_stub():
    public = {name for name in dir(_native) if not name.startswith("_")}
    stubbed = stub()
    assert public == {name for name in stubbed if not name.startswith("_")}
    inherited = {f.name for f in stubbed["_View"].body if isinstance(f, ast.FunctionDef)}
    for name in public:
        node, real = stubbed[name], getattr(_native, name)
        if not isinstance(node, ast.ClassDef):
            assert callable(real)
            continue
        told = {f.name for f in node.body if isinstance(f, ast.FunctionDef)}
        told |= inherited if name in ("DenseView", "RaggedView") else set()
        assert all(hasattr(real, method) for method in told), name
        there = {m for m in vars(real) if not m.startswith("__")}
        assert there <= told, (name, there - told)


def test_the_package_shows_what_its_stub_shows():
    path = Path(batchfs.__file__).with_suffix(".pyi")
    names = {
        alias.asname
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert names == set(batchfs.__all__) and names <= set(dir(batchfs))
    assert set(batchfs.dtypes.__all__) == {"supported", *(d.name for d in batchfs.dtypes.supported)}
    assert path.with_name("py.typed").exists()


def test_public_things_are_documented():
    for name in batchfs.__all__:
        if name in ("torch", "converter", "__version__"):
            continue
        thing = getattr(batchfs, name)
        assert thing.__doc__, name
    for kind in (_native.DLTensor, _native.DenseView, _native.RaggedView, batchfs.Loader):
        for method, value in vars(kind).items():
            if not method.startswith("_") and callable(value):
                assert value.__doc__, (kind, method)

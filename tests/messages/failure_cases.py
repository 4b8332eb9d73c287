"""Faults injected into the compiler: passes, templates, code generation, memory, an interrupt."""

import warnings
from typing import Any

import numpy as np
import tvm
from provoked import case, command, compiled, model, node, relu, replaced, saved, user_pass, value
from tvm import relax

import tvm_ext
from tvm_ext.errors import DefectWarning


def layers(batch="N"):
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="product"),
        node("Tanh", ["m"], ["y"], name="activation"),
    ]
    return model(nodes, [value("x", [batch, 3])], [value("y", None)], w=np.ones((3, 4), np.float32))


def fails_on(operator, raised):
    """A pass that raises at the first call of an operator."""

    def run(mod):
        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                relax.analysis.post_order_visit(func, lambda e: look_at(e))
        return mod

    def look_at(expr):
        if isinstance(expr, relax.Call) and str(getattr(expr.op, "name", "")) == operator:
            raise raised

    return run


INTERNAL = tvm.error.InternalError(
    "Traceback (most recent call last):\n  File src/relax/op.cc, line 3\nCheck failed: (x) is false"
)


@case("a pass of a user that raises", "pass 'Injected' failed", "my own words")
def _(folder):
    with user_pass(fails_on("relax.tanh", ValueError("my own words"))):
        compiled(layers())


@case("a pass of a user in which TVM raises", "pass 'Injected' failed on 'activation'")
def _(folder):
    with user_pass(fails_on("relax.tanh", INTERNAL)):
        compiled(layers())


@case("a pass of a user that returns nothing", "Injected")
def _(folder):
    with user_pass(lambda mod: None):
        compiled(layers())


def _cut_off(mod):
    func = mod["main"]
    body = relax.SeqExpr([], relax.Var("stranger", func.ret_ty))
    main = relax.Function(func.params, body, func.ret_ty).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": main})


@case("a pass of a user that breaks the module", "not well-formed")
def _(folder):
    with user_pass(_cut_off):
        compiled(layers())


def _warned_of(model: Any) -> str:
    """What is said of a defect that the compilation of ``model`` does without."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled(model)
    return str(next(w.message for w in caught if w.category is DefectWarning))


@case("a pass of ours that raises", "bug in tvm-ext", "on 'activation'", "left out")
def _(folder):
    with user_pass(fails_on("relax.tanh", INTERNAL), source="built-in"):
        return _warned_of(layers())


@case("a pass of ours that breaks the module", "bug in tvm-ext", "not well-formed", "left out")
def _(folder):
    with user_pass(_cut_off, source="built-in"):
        return _warned_of(layers())


@case("a pass on kernels that raises", "bug in tvm-ext", "report-bug")
def _(folder):
    def raises(mod):
        raise IndexError("list index out of range")

    with user_pass(raises, level="tile", source="built-in"):
        return _warned_of(layers(2))


@case("an operator that a pass leaves without a kernel", "no kernel can be made")
def _(folder):
    def put_back(mod):
        builder = relax.BlockBuilder()
        x = relax.Var("x", mod["main"].params[0].ty)
        with builder.function("main", [x]):
            builder.emit_func_output(builder.emit(relax.op.nn.softmax(x)))
        return builder.get()

    with user_pass(put_back, after="LegalizeOps"):
        compiled(relu(["N", 3]))


@case("a template that raises", "bug in tvm-ext", "'product", "report-bug")
def _(folder):
    from tvm_ext.hardware.backend import get_backend
    from tvm_ext.tir_schedules.backend import Scheduling

    known = get_backend("cpu").part(Scheduling).recordable
    named = {one.name: type(getattr(one, "template", one)) for one in known}

    def broken(*_):
        raise AttributeError("'Add' object has no attribute 'value'")

    with (
        replaced(named["blockwise"], "apply", broken),
        replaced(named["register tile"], "apply", broken),
    ):
        return _warned_of(layers(2))


@case("a kernel that LLVM refuses", "bug in tvm-ext", "llvm", "'activation'")
def _(folder):
    def unbuildable(mod):
        functions = dict(mod.functions.items())
        for var, func in functions.items():
            if "tanh" in str(var.name_hint):
                x = tvm.tirx.Var("x", "float32")
                twice = [tvm.tirx.Let(x, tvm.tirx.const(v, "float32"), x) for v in (1.0, 2.0)]
                body = tvm.tirx.SeqStmt([tvm.tirx.Evaluate(twice[0] + twice[1]), func.body])
                functions[var] = tvm.tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)
        return tvm.IRModule(functions, attrs=mod.attrs)

    with user_pass(unbuildable, level="target"):
        compiled(layers(2))


@case("planning of storage that fails", "bug in tvm-ext", "ShareStorage", "freeze N")
def _(folder):
    from tvm_ext.passes import share_storage

    def broken(*_, **__):
        raise INTERNAL

    with replaced(share_storage, "_share_storage", broken):
        compiled(layers())


@case("no memory while compiling", "memory")
def _(folder):
    from tvm_ext.passes import share_storage

    def exhausted(*_, **__):
        raise MemoryError

    with replaced(share_storage, "_share_storage", exhausted):
        compiled(layers())


@case("a defect of the importer", "bug in tvm-ext")
def _(folder):
    from tvm_ext.onnx_frontend.importer import _OriginImporter

    def broken(self, *_, **__):
        raise TypeError("'NoneType' object is not iterable")

    with replaced(_OriginImporter, "_construct_nodes", broken):
        compiled(layers())


def _run_with(raised):
    """A run in which the virtual machine raises this."""

    def main(*_):
        raise raised

    made = compiled(layers())
    with replaced(made._made(), "main", main):
        made.run({"x": np.ones((2, 3), np.float32)})


@case("a run that fails in a kernel", "float32[2, 3]")
def _(folder):
    _run_with(RuntimeError("Check failed: tensor->strides == nullptr : src/runtime/vm.cc:4"))


@case("a run without memory", "memory")
def _(folder):
    _run_with(RuntimeError("std::bad_alloc"))


@case("a defect that no step expects, on the command line", "bug in tvm-ext", "--debug")
def _(folder):
    from tvm_ext import api

    def broken(*_, **__):
        raise KeyError("kernel_17")

    with replaced(api, "build_pipeline", broken):
        return command("compile", saved(folder, relu()))


@case("a linker that does not exist", "CXX")
def _(folder):
    import os

    before = dict(os.environ)
    os.environ["CXX"] = "/no/such/compiler"
    try:
        compiled(relu()).save(folder / "m.tvmx")
    finally:
        os.environ.clear()
        os.environ.update(before)


@case("a linker that fails", "CXX")
def _(folder):
    import os

    before = dict(os.environ)
    os.environ["CXX"] = "false"
    try:
        compiled(relu()).save(folder / "m.tvmx")
    finally:
        os.environ.clear()
        os.environ.update(before)


@case("ONNX Runtime refuses the model", "ONNX Runtime")
def _(folder):
    from tvm_ext.check.reference import run_reference

    made = model([node("Relu", ["x"], ["y"])], [value("x", [2])], [value("y", [2])])
    made.graph.node[0].op_type = "NoSuchOperator"
    run_reference(made, {"x": np.ones(2, np.float32)})


@case("a pass whose options it does not take", "Injected")
def _(folder):
    with user_pass(lambda mod: mod):
        compiled(relu(), pass_config={"Injected": {"limit": 3}})


@case("a pass of a class that needs arguments", "Injected")
def _(folder):
    class NeedsMore:
        def __init__(self, limit):
            self.limit = limit

    with user_pass(NeedsMore):
        compiled(relu())


@case("a pass at a level that does not exist", "level")
def _(folder):
    tvm_ext.register_pass(lambda mod: mod, level="loops", name="Injected")


@case("a model that ends the process", "exit code 7")
def _(folder):
    import os

    with user_pass(lambda mod: os._exit(7)):
        return command("check", saved(folder, relu()), "--reduce", folder / "out.onnx")


@case("a model that fails with an error that nothing expects", "report-bug")
def _(folder):
    from tvm_ext.check import reduce

    def wrong(request, inputs):
        raise KeyError("x")

    with replaced(reduce, "check_request", wrong):
        return command("check", saved(folder, relu()), "--reduce", folder / "out.onnx")


@case("a model that takes too long", "--time-limit")
def _(folder):
    from tvm_ext.check import reduce
    from tvm_ext.tuning.worker import WorkerTimeout

    def late(self, *arguments, timeout):
        raise WorkerTimeout(f"took longer than {timeout:g} s")

    with replaced(reduce.ForkedWorker, "call", late):
        return command("check", saved(folder, relu()), "--reduce", folder / "out.onnx")


@case("a failure that a copy of the model does not have", "--all-values")
def _(folder):
    from tvm_ext.check import reduce

    path = saved(folder, relu())

    def wrong(request, inputs):
        if request.source == path:
            raise KeyError("x")
        return real(request, inputs)

    real = reduce.check_request
    with replaced(reduce, "check_request", wrong):
        return command("check", path, "--reduce", folder / "out.onnx")

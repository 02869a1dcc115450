"""The mutants of a module: small changes of its functions, one at a time.

A mutant is named by its function and its change (`Log.append: offset < end -> offset <= end`), not
by a line, so that a judgement about it survives changes elsewhere in the file. Only code in
functions is changed: the runner swaps the code of functions in a forked process.

Left alone is what does not decide: log lines, messages of errors and assertions, docstrings,
annotations, ``__repr__``, and imports.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from types import CodeType
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNINTERESTING_FUNCTIONS = ("__repr__", "__str__")
LOGGERS = ("logger", "logging")


class _Change(NamedTuple):
    node: ast.AST
    description: str
    apply: Callable[[ast.AST], ast.AST]  # gets the copy of `node` in a copy of the tree


class Mutant(NamedTuple):
    """`lines` are those of the changed statement or expression."""

    name: str
    lines: range
    tree: ast.Module
    change: _Change

    def compile(self, filename: str) -> CodeType:
        """The code of the whole module with the change."""
        return compile(_changed(self.tree, self.change), filename, "exec", dont_inherit=True)


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its lines. Names are unique: repetitions of the same
    change in one function are numbered from the second on."""
    tree = ast.parse(source)
    seen: dict[str, int] = {}
    for function, node in _nodes_of_functions(tree, ""):
        for change in _changes(node):
            name = f"{function}: {change.description}"
            seen[name] = seen.get(name, 0) + 1
            if seen[name] > 1:
                name = f"{name} #{seen[name]}"
            yield Mutant(name, _lines(node), tree, change)


def _lines(node: ast.AST) -> range:
    if isinstance(node, ast.comprehension):
        return range(node.target.lineno, (node.ifs or [node.iter])[-1].lineno + 1)
    assert isinstance(node, (ast.stmt, ast.expr))
    if isinstance(node, (ast.If, ast.While)):
        return _lines(node.test)
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _changed(tree: ast.Module, change: _Change) -> ast.Module:
    memo: dict[int, object] = {}
    copied = copy.deepcopy(tree, memo)
    target = memo[id(change.node)]
    assert isinstance(target, ast.AST)
    replacement = change.apply(target)
    if replacement is not target:
        ast.copy_location(replacement, target)
        _Replace(target, replacement).visit(copied)
    return ast.fix_missing_locations(copied)


class _Replace(ast.NodeTransformer):
    def __init__(self, target: ast.AST, replacement: ast.AST) -> None:
        self.target = target
        self.replacement = replacement

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self.target:
            return self.replacement
        return self.generic_visit(node)


def _nodes_of_functions(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """(function, node) of all that may be changed."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if child.name not in UNINTERESTING_FUNCTIONS:
                name = f"{function}.{child.name}" if function else child.name
                for statement in child.body:
                    yield from _with_children(name, statement)
        elif isinstance(child, ast.ClassDef):
            name = f"{function}.{child.name}" if function else child.name
            yield from _nodes_of_functions(child, name)
        elif isinstance(child, (ast.If, ast.Try)) and not function:
            yield from _nodes_of_functions(child, function)


def _with_children(function: str, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for statement in node.body:
            yield from _with_children(f"{function}.{node.name}", statement)
        return
    if _is_uninteresting(node):
        return
    yield function, node
    if isinstance(node, ast.AnnAssign):
        children: Iterator[ast.AST] = iter([node.value] if node.value is not None else [])
    elif isinstance(node, ast.Raise):
        return  # its message
    elif isinstance(node, ast.keyword) and node.arg == "strict":
        return  # of zip: an assertion
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from _with_children(function, child)


def _is_uninteresting(node: ast.AST) -> bool:
    if isinstance(node, (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Constant):
            return True
        return isinstance(node.value, ast.Call) and _is_logging(node.value)
    return False


def _is_logging(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in LOGGERS
    )


def _changes(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.stmt):
        yield from _statements(node)
    elif isinstance(node, ast.Compare):
        yield from _comparisons(node)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield _attribute(node, "op", other())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _Change(node, _describe(node, node.operand), lambda each: each.operand)  # type: ignore[attr-defined]
    elif isinstance(node, ast.BinOp):
        left = node.left.value if isinstance(node.left, ast.Constant) else None
        is_text = isinstance(node.left, ast.JoinedStr) or isinstance(left, (str, bytes))
        if type(node.op) in ARITHMETIC and not is_text:
            yield _attribute(node, "op", ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield _attribute(node, "func", ast.Name(CALLS[node.func.id], ast.Load()))
    elif isinstance(node, ast.IfExp):
        yield from _test(node)
    elif isinstance(node, ast.comprehension):
        for index in range(len(node.ifs)):
            yield _Change(
                node,
                f"[if {ast.unparse(node.ifs[index])}] -> [if not ...]",
                lambda each, index=index: _negate_filter(each, index),  # type: ignore[misc]
            )


def _negate_filter(node: ast.AST, index: int) -> ast.AST:
    assert isinstance(node, ast.comprehension)
    node.ifs[index] = ast.UnaryOp(ast.Not(), node.ifs[index])
    return node


def _statements(node: ast.stmt) -> Iterator[_Change]:
    if isinstance(node, (ast.If, ast.While)):
        yield from _test(node)
    elif isinstance(node, (ast.Continue, ast.Break)):
        other = ast.Break() if isinstance(node, ast.Continue) else ast.Continue()
        yield _Change(node, _describe(node, other), lambda _: other)
    elif isinstance(node, ast.Return):
        if node.value is not None and not isinstance(node.value, ast.Constant):
            nothing = ast.Return(ast.Constant(None))
            yield _Change(node, _describe(node, nothing), lambda _: nothing)
    elif isinstance(node, ast.AugAssign):
        if type(node.op) in ARITHMETIC:
            yield _attribute(node, "op", ARITHMETIC[type(node.op)]())
        yield _removal(node)
    elif (
        isinstance(node, (ast.Raise, ast.Delete))
        or (isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)))
        or (
            isinstance(node, ast.Assign)
            and any(isinstance(each, (ast.Attribute, ast.Subscript)) for each in node.targets)
        )
    ):
        yield _removal(node)


def _test(node: ast.If | ast.While | ast.IfExp) -> Iterator[_Change]:
    """The other operators change comparisons, `and`, `or` and `not`."""
    if not isinstance(node.test, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)):
        before = node.test
        after = ast.UnaryOp(ast.Not(), before)
        keyword = type(node).__name__.lower()
        text = f"{keyword} {ast.unparse(before)} -> {keyword} {ast.unparse(after)}"

        def negate(each: ast.AST) -> ast.AST:
            assert isinstance(each, (ast.If, ast.While, ast.IfExp))
            each.test = ast.UnaryOp(ast.Not(), each.test)
            return each

        yield _Change(node, text, negate)


def _comparisons(node: ast.Compare) -> Iterator[_Change]:
    for index, operator in enumerate(node.ops):
        for other in COMPARISONS[type(operator)]:
            ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
            yield _attribute(node, "ops", ops)


def _constants(node: ast.Constant) -> Iterator[_Change]:
    value = node.value
    if isinstance(value, bool):
        yield _attribute(node, "value", not value)
    elif isinstance(value, int):
        yield _attribute(node, "value", value + 1)


def _removal(node: ast.stmt) -> _Change:
    first = ast.unparse(node).split("\n")[0]
    if isinstance(node, ast.Raise):
        first = first.split("(")[0]
    return _Change(node, f"{first} -> pass", lambda _: ast.Pass())


def _attribute(node: ast.AST, name: str, value: object) -> _Change:
    after = copy.copy(node)
    setattr(after, name, value)

    def apply(each: ast.AST) -> ast.AST:
        setattr(each, name, value)
        return each

    return _Change(node, _describe(node, after), apply)


def _describe(before: ast.AST, after: ast.AST) -> str:
    return f"{ast.unparse(before)} -> {ast.unparse(after)}".replace("\n", " ")

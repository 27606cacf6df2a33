"""Small faults that can be put into a Python file: another operator, a constant off by one, a mask that is dropped.

Nothing is changed where a fault would not matter: in docstrings, type hints, error messages and logging.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_PAIRS = (
    "min max",
    "amin amax",
    "argmin argmax",
    "any all",
    "zeros ones",
    "zeros_ ones_",
    "new_zeros new_ones",
    "sum mean",
)
FUNCTIONS = {one: other for pair in _PAIRS for one, other in (pair.split(), pair.split()[::-1])}
FUNCTIONS |= {"mean": "sum", "log_softmax": "softmax", "softmax": "log_softmax", "triu": "tril", "tril": "triu"}
# Methods whose call is replaced by what they are called on.
DROPPED = {"transpose", "permute", "flip", "masked_fill", "masked_fill_", "clamp", "clamp_min", "clamp_max", "detach"}
# Calls that only write messages or check types, which no mutant changes.
MESSAGE_CALLS = ("logger.", "logging.", "warnings.", "print", "isinstance", "issubclass", "super")


class Edit(NamedTuple):
    """Bytes `start` to `end` of `file` become `after`."""

    file: str
    line: int
    start: int
    end: int
    kind: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {_one_line(self.before)} -> {_one_line(self.after)}"

    def applied_to(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def edits(file: str, source: bytes) -> list[Edit]:
    """All edits of one file, in the order of its text."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    edit_at = {}
    for node, kind, after in _visit(tree):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        edit_at[start, end, after] = Edit(file, node.lineno, start, end, kind, source[start:end].decode(), after)
    return [edit_at[place] for place in sorted(edit_at)]


def function_around(source: bytes, line: int) -> int | None:
    """The line where the outermost function around a line begins, as Python counts it; None outside of functions.

    Python counts decorators, except in Triton's kernels: Triton makes its own functions from the text of their `def`.
    """
    waiting: list[ast.AST] = list(ast.parse(source).body)
    for node in waiting:
        if isinstance(node, ast.ClassDef):
            waiting += node.body
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= line <= (node.end_lineno or 0):
                is_kernel = any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
                return node.lineno if is_kernel else first
    return None


def changes_the_program(edit: Edit, source: bytes) -> bool:
    """Whether Python can read the edited file, and reads another program in it."""
    try:
        return ast.dump(ast.parse(edit.applied_to(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def _visit(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    if _says_something(node):
        return
    if isinstance(node, ast.expr):
        yield from ((node, kind, after) for kind, after in _of_expression(node))
    if isinstance(node, ast.stmt):
        yield from ((node, kind, after) for kind, after in _of_statement(node))
    if isinstance(node, ast.If | ast.IfExp | ast.While) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        yield node.test, "negated condition", f"(not {ast.unparse(node.test)})"
    if isinstance(node, ast.Call):
        yield from ((value, "dropped mask", "None") for value in _masks(node))
    if isinstance(node, ast.UnaryOp) and _is_number(node.operand):
        return  # `-1` is one number
    for name, field in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "type_comment", "bases"):
            for child in field if isinstance(field, list) else [field]:
                if isinstance(child, ast.AST):
                    yield from _visit(child)


def _says_something(node: ast.AST) -> bool:
    """Docstrings, messages, and what only type checkers read."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).startswith(MESSAGE_CALLS)
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _of_statement(node: ast.stmt) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        if not _says_something(node.value) and not ast.unparse(node.value).startswith("super()"):
            yield "dropped call", "pass"
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        other = ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
        yield "operator", ast.unparse(other)


def _of_expression(node: ast.expr) -> Iterator[tuple[str, str]]:
    match node:
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS and not _is_text(left, right):
            yield "operator", f"({ast.unparse(ast.BinOp(left, OPERATORS[type(operator)](), right))})"
        case ast.BinOp(left, ast.MatMult(), right):
            yield "swapped operands", f"({ast.unparse(ast.BinOp(right, ast.MatMult(), left))})"
        case ast.Compare(left, [comparison], right):
            yield "comparison", f"({ast.unparse(ast.Compare(left, [COMPARISONS[type(comparison)]()], right))})"
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "and, or", f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield "dropped not", f"({ast.unparse(operand)})"
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as number)):
            yield "constant", repr(-number - 1)
        case ast.UnaryOp(ast.USub(), operand):
            yield "dropped minus", f"({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            yield "true, false", repr(not value)
        case ast.Constant(int() as number):
            yield "constant", repr(number + 1)
        case ast.Constant(float() as number):
            yield "constant", repr(2 * number if number else 1.0)
        case ast.Call(ast.Attribute(value, name), arguments, keywords):
            if name in FUNCTIONS:
                yield "function", ast.unparse(ast.Call(ast.Attribute(value, FUNCTIONS[name]), arguments, keywords))
            if name in DROPPED and ast.unparse(value) != "torch":
                yield "dropped method", ast.unparse(value)
        case ast.Call(ast.Name(name), arguments, keywords) if name in FUNCTIONS:
            yield "function", ast.unparse(ast.Call(ast.Name(FUNCTIONS[name]), arguments, keywords))


def _masks(call: ast.Call) -> Iterator[ast.expr]:
    """Arguments that are masks."""
    named = [(keyword.arg or "", keyword.value) for keyword in call.keywords]
    for name, value in [("", argument) for argument in call.args] + named:
        is_mask = "mask" in name or (isinstance(value, ast.Name) and "mask" in value.id)
        if is_mask and not isinstance(value, ast.Constant | ast.Starred):
            yield value


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _is_text(*nodes: ast.expr) -> bool:
    """Whether one is a text or a list as it is written, which no other operator takes."""
    return any(
        isinstance(node, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        for node in nodes
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())

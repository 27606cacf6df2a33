"""Which test files can notice a change of a source file, and in which order they are run.

A test file can notice it if it imports the file, directly or through others. The imports are read from the sources.
A public name that the package loads on first use counts where a file uses that name.
"""

import ast
import re
from pathlib import Path

# Tests import modules of these folders, and of the folders below, by their last name: pytest adds each test's folder.
TOP_LEVEL_FOLDERS = ("tests", "scripts")
# Names in a test that runs code in another process or compiles it. Tracing in the test's own process misses it.
SUBPROCESS_MARKERS = re.compile(
    r"run_script|start_script|run_processes|subprocess|multiprocessing|fork|\bcompile\b|jit\."
)


class Imports:
    """The graph of imports between the Python files of a repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        folders = [folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
        paths = [path for folder in folders for path in folder.rglob("*.py")]
        self.files = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
        self._modules: dict[str, str] = {}
        for file in self.files:
            name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            self._modules[name] = file
            if file.startswith(tuple(f"{folder}/" for folder in TOP_LEVEL_FOLDERS)):
                self._modules.setdefault(name.rpartition(".")[2], file)
        self._trees = {file: ast.parse(text) for file, text in self.files.items()}
        self._lazy = {
            file: {alias.name: str(node.module) for node in _imports_for_checkers(tree) for alias in node.names}
            for file, tree in self._trees.items()
            if file.endswith("__init__.py")
        }
        self._direct = {file: self._imported(file, tree) for file, tree in self._trees.items()}

    def tests(self) -> list[str]:
        return sorted(file for file in self.files if re.search(r"(^|/)test_\w+\.py$", file))

    def reached_by(self, test: str) -> set[str]:
        """The files that are imported when `test` runs."""
        reached: set[str] = set()
        waiting = [test]
        while waiting:
            file = waiting.pop()
            if file not in reached:
                reached.add(file)
                waiting += self._direct[file]
        return reached

    def runs_elsewhere(self, test: str) -> bool:
        """Whether a test starts processes or compiles, so that tracing misses what it runs."""
        return bool(SUBPROCESS_MARKERS.search(self.files[test]))

    def _imported(self, file: str, tree: ast.Module) -> set[str]:
        imported: set[str] = set()
        checkers = {id(node) for node in _imports_for_checkers(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {name for alias in node.names for name in self._module(alias.name)}
            elif isinstance(node, ast.ImportFrom) and id(node) not in checkers:
                module = self._absolute(file, node)
                imported |= self._module(module)
                for alias in node.names:
                    imported |= self._name(module, alias.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                imported |= self._name(node.value.id, node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                imported |= self._script(node.value)
        return imported

    def _module(self, name: str) -> set[str]:
        """The file of a module, and those of the packages around it."""
        parts = name.split(".")
        names = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return {self._modules[name] for name in names if name in self._modules}

    def _name(self, module: str, name: str) -> set[str]:
        """The files behind a name of a module: a module itself, or a name loaded on first use."""
        lazy = self._lazy.get(self._modules.get(module, ""), {})
        return self._module(lazy[name]) if name in lazy else self._module(f"{module}.{name}") - self._module(module)

    def _script(self, text: str) -> set[str]:
        """A script that a test names; all of them if the name is put together."""
        if text in self.files:
            return {text}
        return {file for file in self.files if re.fullmatch(r"scripts/\w+\.py", file)} if text == "scripts/" else set()

    def _absolute(self, file: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = file.split("/")[: -node.level]
        return ".".join([*package, *([node.module] if node.module else [])])


def _imports_for_checkers(tree: ast.Module) -> list[ast.ImportFrom]:
    """The imports below `if TYPE_CHECKING`, which do not happen when the program runs."""
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]


def closeness(test: str, source: str) -> int:
    """How close a test is to a source file: three for each word of its name in the path, one for a shared folder."""
    name = {*Path(test).stem.split("_")} - {"test"}
    path = {*re.split(r"[/_]", source.removesuffix(".py"))} - {"hf", "capsule", "mt"}
    return 3 * len(name & path) + (f"/{test.split('/')[1]}/" in source)


def sort_by_cost(tests: dict[str, float], source: str) -> list[str]:
    """Test files with their seconds: cheap and closely related ones come first."""
    return sorted(tests, key=lambda test: ((1.0 + tests[test]) / (1 + closeness(test, source)) ** 2, test))

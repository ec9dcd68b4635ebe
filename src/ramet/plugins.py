"""Classes of your own by reference: `file.py:Name`, `package.module:Name`, or the name of a package's entry point.

    load("my_tasks.py:Backwards", "taskset")()
    load("my_package.rules:Mine", "rule")
    load("backwards", "taskset")

The last one is the entry point `backwards` in the group `ramet.tasksets`.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from ramet.errors import ConfigError, did_you_mean

SUFFIX = ".py"
# A file, after the package that reads it, and before a name and maybe a split.
FILE_REFERENCE = re.compile(r"(?:(?=inspect:|verifiers:)(\w+:)|(?=.*\.py:))([^\s:@]+\.py)((?:[:@]\S+)?)")
SETTINGS = ("task", "tasks", "rule", "world", "dialect", "kind", "when")  # that may be references
MARK = "__ramet_plugin__"  # set in the modules of plug-ins
GIVEN = "object:"  # begins the reference of an object that a Python program passed in
_given: dict[str, Any] = {}  # those objects by reference, while their run lasts


@dataclass(frozen=True, slots=True)
class Kind:
    """What a plug-in of this kind must have. Attributes are looked for on objects only: `__init__` may set them."""

    methods: tuple[str, ...]
    attributes: tuple[str, ...] = ()
    group: str = ""  # of its entry points; empty: it has none


KINDS: dict[str, Kind] = {
    "taskset": Kind(
        ("size", "task", "world", "budget", "verdict", "oracle", "self_check"),
        ("name", "about", "splits"),
        "ramet.tasksets",
    ),
    "rule": Kind(("credit",), (), "ramet.rules"),
    "dialect": Kind(
        ("system", "opening", "results", "remaining", "closing", "session"), ("name", "stop"), "ramet.dialects"
    ),
    "engine": Kind(("sample",), ("renderer",), "ramet.engines"),
    "world": Kind((), ("functions", "context")),
    "function": Kind(("__call__",)),
}


def load(reference: str, kind: str) -> Any:
    """The class, function or object that a reference names. A class or an object must fit the kind."""
    if reference.startswith(GIVEN):
        return _find_given(reference, kind)
    place, name = split_reference(reference)
    if not name:
        return _load_entry_point(reference, kind)
    return check(_find(_import(reference, place), name, reference), kind, reference)


def make(reference: str, kind: str, *args: Any, **options: Any) -> Any:
    """The object that a reference names; a class or a function is called with the arguments."""
    found = load(reference, kind)
    if not inspect.isclass(found) and not inspect.isroutine(found):
        if options:
            raise ConfigError(f"{reference} is an object, so it takes no options: name its class")
        return found
    try:
        made = found(*args, **options)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  the user's code may raise anything
        raise ConfigError(f"{reference} cannot be made: {describe(error)}") from None
    return check(made, kind, reference)


def is_reference(text: str) -> bool:
    """Whether a text is `file.py:Name` or `package.module:Name`, and not a plain name.

    Example:
        is_reference("my_tasks.py:Backwards")  # True
        is_reference("craft:hard")             # False
    """
    place, name = split_reference(text)
    return text.startswith(GIVEN) or (bool(name) and ("." in place or "/" in place))


def split_reference(reference: str) -> tuple[str, str]:
    """The file or module of a reference, and the name in it; the name is empty for a plain word.

    Example:
        split_reference("tasks/mine.py:Backwards")  # ("tasks/mine.py", "Backwards")
        split_reference("craft")                    # ("", "")
    """
    place, colon, name = reference.rpartition(":")
    return (place, name) if colon and place and name else ("", "")


def check(found: Any, kind: str, reference: str) -> Any:
    """The plug-in, if it has what its kind needs. A function is checked by what it makes."""
    wanted = KINDS[kind]
    if inspect.isroutine(found):
        return found
    if kind == "function" and not callable(found):
        raise ConfigError(f"{reference} is no function: it is a {type(found).__name__}")
    names = wanted.methods if inspect.isclass(found) else (*wanted.methods, *wanted.attributes)
    missing = [name for name in names if not hasattr(found, name)]
    if missing:
        article = "an" if kind[0] in "aeiou" else "a"
        raise ConfigError(f"{reference} is not {article} {kind}: it has no {', no '.join(missing)}")
    for name in wanted.methods:
        if not callable(getattr(found, name)):
            raise ConfigError(f"{reference}: {name} must be a method; got {type(getattr(found, name)).__name__}")
    splits = getattr(found, "splits", None)
    if kind == "taskset" and splits is not None and not isinstance(splits, Mapping | property):
        raise ConfigError(f'{reference}: splits must be a dict, like {{"train": "what it has"}}; got {splits!r}')
    return found


def check_has_name(reference: str, kind: str) -> None:
    """Refuse a file without the name of a class in it. The error lists the classes that fit."""
    if not reference.endswith(SUFFIX):
        return
    module = import_file(reference, reference=reference)
    own = [(name, value) for name, value in vars(module).items() if _is_public(name, value, module)]
    fitting = [name for name, value in own if inspect.isclass(value) and _fits(value, kind)]
    classes = f"{kind}s in it: {', '.join(fitting)}" if fitting else f"it has no class that is a {kind}"
    raise ConfigError(f"{reference} is a file: write {reference}:NAME; {classes}")


def _fits(found: Any, kind: str) -> bool:
    try:
        check(found, kind, "")
    except ConfigError:
        return False
    return True


# Importing.


def import_file(file: Path | str, *, reference: str | None = None) -> ModuleType:
    """The module in a Python file. It may import modules that are in the same folder."""
    path = expanded(file)
    where = f"{reference}: " if reference else ""
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{where}no such file: {path}") from None
    except OSError as error:
        raise ConfigError(f"{where}cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"{where}no such file: {str(path)!r}") from None
    path = path.resolve()
    name = f"ramet_plugin_{path.stem}_{hashlib.sha256(str(path).encode() + source).hexdigest()[:12]}"
    if name not in sys.modules:
        _execute(name, path, where)
    return sys.modules[name]


def _execute(name: str, path: Path, where: str) -> None:
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{where}{path} is not a Python file")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    linecache.checkcache(str(path))
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look up their module there
    setattr(module, MARK, True)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, (Exception, SystemExit)):
            raise
        raise ConfigError(f"{where}{describe(error, path)}") from None


def _import(reference: str, place: str) -> ModuleType:
    if place.endswith(SUFFIX):
        return import_file(place, reference=reference)
    if "/" in place:
        raise ConfigError(f"{reference}: {place} is not a Python file: write {place}.py:Name, or package.module:Name")
    try:
        module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise ConfigError(f"{reference}: no module {error.name!r} in this environment") from None
        raise ConfigError(f"{reference}: {describe(error)}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  a module may raise anything when it is imported
        raise ConfigError(f"{reference}: {describe(error)}") from None
    setattr(module, MARK, True)
    return module


def _find(module: ModuleType, name: str, reference: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(module).items() if _is_public(key, value, module)]
            raise ConfigError(f"{reference}: it has no {name}: {did_you_mean(name, known)}")
        found = getattr(found, part)
    return found


def _is_public(name: str, value: object, module: ModuleType) -> bool:
    """Whether a name is one that the module offers: not private, not a module, not imported."""
    home = getattr(value, "__module__", module.__name__)
    return not name.startswith("_") and not isinstance(value, ModuleType) and home == module.__name__


def describe(error: BaseException, file: Path | None = None) -> str:
    """An exception in one line, with its notes and the file and line it comes from: the last ones in `file`, if known.

    One reads "NameError in my_tasks.py, line 12: name 'Budgets' is not defined".
    """
    name, message = type(error).__name__, " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        place, line, message = error.filename, error.lineno, error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if file is not None and frame.filename == str(file)]
        own = own or [frame for frame in frames if frame.filename != __file__]
        place, line = (own[-1].filename, own[-1].lineno) if own else (None, None)
    where = "" if place is None else f" in {Path(place).name}, line {line}"
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()) if "\n" not in note)
    return (f"{name}{where}: {message}" if message else f"{name}{where}") + notes


def first_error(error: BaseException) -> BaseException:
    """The error itself; of a group, which tasks that run in parallel raise, the first one in it."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    return first_error(cast(BaseExceptionGroup[BaseException], error).exceptions[0])


def mistake(error: BaseException) -> str | None:
    """An exception that passed through the code of a plug-in, in one line; None if it passed through none."""
    error = first_error(error)
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__) if MARK in frame.f_globals]
    return describe(error, Path(files[-1])) if files else None


# Entry points of installed packages.


def entry_point_names(kind: str) -> list[str]:
    """The names that installed packages give to plug-ins of a kind."""
    return sorted(_entry_points(kind))


def _entry_points(kind: str) -> Mapping[str, EntryPoint]:
    group = KINDS[kind].group
    return {point.name: point for point in entry_points(group=group)} if group else {}


def _load_entry_point(name: str, kind: str) -> Any:
    points = _entry_points(kind)
    if name not in points:
        known = did_you_mean(name, points) if points else "no installed package has it"
        raise ConfigError(f"unknown {kind} {name!r}: {known}")
    reference = f"{points[name].module}:{points[name].attr}"
    return check(_find(_import(reference, points[name].module), points[name].attr, reference), kind, reference)


# Objects that a program passes in.


@contextmanager
def holding(found: object, kind: str, *, reference: str | None = None) -> Generator[str]:
    """A reference to an object, valid within the block: settings are texts, and an object is none.

    Example:
        with holding(Backwards(), "taskset") as reference:
            load(reference, "taskset")
    """
    name = getattr(found, "__name__", type(found).__name__)
    if reference is None:
        numbers = (f"{GIVEN}{name}{'' if number == 1 else f'-{number}'}" for number in range(1, len(_given) + 2))
        reference = next(free for free in numbers if free not in _given)
    _given[reference] = check(found, kind, name)
    try:
        yield reference
    finally:
        del _given[reference]


def _find_given(reference: str, kind: str) -> Any:
    if reference not in _given:
        name = reference.removeprefix(GIVEN)
        raise ConfigError(f"{name} is a {kind} that a Python program passed in: resume this run from Python, with it")
    return check(_given[reference], kind, reference)


# Finding a plug-in again.


def fingerprint(reference: str, kind: str) -> str:
    """SHA-256 of the file that a reference is in; empty for an object and for a package without a file."""
    if reference.startswith(GIVEN):
        return ""
    place, name = split_reference(reference)
    if not name:
        place = _entry_points(kind)[reference].module
    file = place if place.endswith(SUFFIX) else getattr(_import(reference, place), "__file__", None)
    return "" if file is None else hashlib.sha256(expanded(file).read_bytes()).hexdigest()


def expanded(file: Path | str) -> Path:
    """The path with the home folder that a `~` at its beginning stands for."""
    try:
        return Path(file).expanduser()
    except RuntimeError:
        raise ConfigError(f"{file}: this user has no home folder here") from None


def anchored(reference: str, folder: Path) -> str:
    """The reference with an absolute path, if it names a file: relative paths start from `folder`.

    Example:
        anchored("mine.py:Backwards:train", Path("/recipes"))   # "/recipes/mine.py:Backwards:train"
        anchored("inspect:evals.py@sums", Path("/recipes"))     # "inspect:/recipes/evals.py@sums"
        anchored("craft:hard", Path("/recipes"))                # "craft:hard"
    """
    found = FILE_REFERENCE.fullmatch(reference)
    if found is None:
        return reference
    prefix, file, rest = found.groups(default="")
    return f"{prefix}{(folder / expanded(file)).resolve()}{rest}"


def anchor_settings(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The settings with absolute paths in the references to files, so that a run finds them from any folder."""
    return {key: _anchor_value(key.rpartition(".")[2], value, folder) for key, value in settings.items()}


def _anchor_value(key: str, value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return anchor_settings(cast(dict[str, Any], value), folder)
    if key not in SETTINGS:
        return value
    if isinstance(value, list):
        return [_anchor_value(key, item, folder) for item in cast(list[Any], value)]
    return anchored(value, folder) if isinstance(value, str) else value


def shortened(reference: str) -> str:
    """The reference without the folder of its file, to show it.

    Example:
        shortened("/recipes/mine.py:Backwards:train")  # "mine.py:Backwards:train"
    """
    found = FILE_REFERENCE.fullmatch(reference)
    return reference if found is None else f"{found[1] or ''}{Path(found[2]).name}{found[3]}"


def shortened_each(references: str) -> str:
    """The same for several references in one text.

    Example:
        shortened_each("/recipes/mine.py:Backwards, craft:hard")  # "mine.py:Backwards, craft:hard"
    """
    return ", ".join(map(shortened, references.split(", ")))

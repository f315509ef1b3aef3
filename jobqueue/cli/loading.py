"""Importing the application's registry of handlers by the name ``MODULE:NAME``."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Collection
from types import ModuleType
from typing import Any

from jobqueue.cli.database import driver_problem
from jobqueue.errors import HandlerError
from jobqueue.failure import failure_summary
from jobqueue.handlers import Handlers


def load_handlers(name: tuple[str, str]) -> Handlers:
    """Import the registry; modules are looked for in the current directory too.

    :raises HandlerError: saying which step failed: no such module, the import raised, no such name, no registry.
    """
    module_name, attribute = name
    module = _import(module_name)
    registry = _attribute(module, module_name, attribute)
    if not isinstance(registry, Handlers):
        raise HandlerError(
            f"{module_name}:{attribute} is of type {type(registry).__name__}, not a jobqueue.Handlers registry"
            f"{_hint(module, module_name)}"
        )
    return registry


def require_handlers(handlers: Handlers, kinds: Collection[str], name: tuple[str, str]) -> None:
    """:raises HandlerError: if a kind has no handler."""
    missing = sorted(set(kinds) - handlers.kinds)
    if missing or not handlers:
        has = f"it has {', '.join(sorted(handlers.kinds))}" if handlers else "it is empty"
        wanted = f"no handler for {', '.join(missing)}" if missing else "no handlers"
        raise HandlerError(f"{':'.join(name)} has {wanted} ({has}); register one with @handlers.register(KIND)")


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise HandlerError(
                f"there is no module {error.name!r}, neither in {here} nor among the installed packages; "
                "change to the application's directory, or install it"
            ) from error
        raise _import_raised(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_raised(name, error) from error


def _import_raised(name: str, error: BaseException) -> HandlerError:
    if isinstance(error, ImportError) and (problem := driver_problem()):
        # The application's module was only the first to ask for it
        return HandlerError(problem)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" at {error.filename}:{error.lineno}"
    return HandlerError(f"importing {name!r} failed{where}: {failure_summary(error)}")


def _attribute(module: ModuleType, module_name: str, attribute: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise HandlerError(f"the module {module_name!r} has no {attribute!r}{_hint(module, module_name)}") from None
    return found


def _hint(module: ModuleType, module_name: str) -> str:
    """The registries that the module does have."""
    names = [name for name, value in vars(module).items() if isinstance(value, Handlers)]
    if not names:
        return f"; define `handlers = jobqueue.Handlers()` in {module.__file__ or module_name}"
    return f"; did you mean {' or '.join(f'{module_name}:{name}' for name in names)}?"

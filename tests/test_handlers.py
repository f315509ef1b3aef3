"""The registry of handlers: what may be one, what it is given, and what is refused at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from tenacity import retry_if_exception_type, wait_fixed

from jobqueue import SYSTEM_TENANT_ID, DeadLetter, Handlers, JobContext, Snooze, Stop
from jobqueue.errors import HandlerError, InvalidJob, PayloadError
from jobqueue.handlers import Handler
from jobqueue.states import JobStatus

if TYPE_CHECKING:
    from decimal import Decimal


class Payload(BaseModel):
    to: str


class Callee:
    def __call__(self, payload: Payload, job: JobContext) -> str:
        return payload.to

    def method(self, payload: Payload) -> str:
        return payload.to

    @staticmethod
    def static(payload: Payload) -> str:
        return payload.to


class AsyncCallee:
    async def __call__(self, payload: Payload) -> str:
        return payload.to


def _payload_only(payload: Payload) -> str:
    return payload.to


def _with_job(payload: Payload, job: JobContext) -> str:
    return payload.to


def _with_another_name(payload: Payload, context: JobContext) -> str:
    return payload.to


def _with_optional_job(payload: Payload, job: JobContext | None = None) -> str:
    return payload.to


def _with_its_own_default(payload: Payload, retries: int = 3, *, verbose: bool = False) -> str:
    return payload.to + "!" * (retries == 3)


async def _async(payload: Payload, job: JobContext) -> str:
    return payload.to


def _wrapped() -> Callable[..., Any]:
    @functools.wraps(_payload_only)
    def wrapper(*args: Any, **kwargs: Any) -> str:
        return _payload_only(*args, **kwargs)

    return wrapper


def _register(function: Callable[..., Any], **options: Any) -> Handler[Any]:
    return Handlers().register("email_send", **options)(function)


FUNCTIONS: dict[str, tuple[Callable[..., Any], bool, bool]] = {
    "payload": (_payload_only, False, False),
    "payload and job": (_with_job, True, False),
    "payload and job by another name": (_with_another_name, True, False),
    "optional job": (_with_optional_job, True, False),
    "a default of its own": (_with_its_own_default, False, False),
    "async": (_async, True, True),
    "callable object": (Callee(), True, False),
    "async callable object": (AsyncCallee(), False, True),
    "method": (Callee().method, False, False),
    "static method": (Callee.static, False, False),
    "wrapped": (_wrapped(), False, False),
}


@pytest.mark.parametrize(("function", "takes_job", "is_async"), FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_what_takes_a_payload_may_be_a_handler(function: Callable[..., Any], takes_job: bool, is_async: bool) -> None:
    handler = _register(function)
    assert (handler.takes_job, handler.is_async) == (takes_job, is_async)
    assert handler.payload_type.parse('{"to": "ada"}') == Payload(to="ada")
    if not is_async:
        assert str(handler(Payload(to="ada"))).startswith("ada")


def test_without_an_annotation_the_payload_is_a_dict() -> None:
    handler = _register(lambda payload: payload)
    assert handler.payload_type.parse('{"a": 1}') == {"a": 1}


def _generator(payload: dict[str, Any]) -> Any:
    yield payload


async def _async_generator(payload: dict[str, Any]) -> Any:
    yield payload


def _hidden_type(payload: Decimal) -> None: ...


class Plain: ...


def _unknown_to_pydantic(payload: Plain) -> None: ...


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "nothing": (lambda: None, r"must take \(payload\) or \(payload, job\)"),
    "too much": (lambda payload, job, more: None, "must take"),
    "keyword only": (lambda payload, *, job: None, "must take"),
    "anything": (lambda *args, **kwargs: None, "must take"),
    "generator": (_generator, "would never run"),
    "async generator": (_async_generator, "would never run"),
    "type not there at run time": (_hidden_type, "import the type at run time"),
    "no payload type": (_unknown_to_pydantic, "cannot be a payload type"),
}


@pytest.mark.parametrize(("function", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_a_handler_is_refused_at_once(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(HandlerError, match=reason) as refusal:
        _register(function)
    assert "email_send" in str(refusal.value) or "payload type" in str(refusal.value)


OPTIONS: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"max_attempts": 0}, InvalidJob),
    ({"max_attempts": True}, InvalidJob),
    ({"timeout": timedelta(seconds=-1)}, InvalidJob),
    ({"timeout": 5}, InvalidJob),
    ({"wait": timedelta(seconds=5)}, HandlerError),
    ({"wait": 5}, HandlerError),
    ({"retry": ValueError("x")}, HandlerError),
]


@pytest.mark.parametrize(("options", "error"), OPTIONS, ids=repr)
def test_options_that_cannot_work_are_refused_at_once(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        _register(_payload_only, **options)


@pytest.mark.parametrize("kind", ["", "Email", "a-b", "a\x00b", None, 5])
def test_a_kind_that_cannot_be_one_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(InvalidJob):
        Handlers().register(kind)


def test_a_kind_has_one_handler() -> None:
    handlers = Handlers()
    handlers.register("email_send")(_payload_only)
    with pytest.raises(HandlerError, match=r"'email_send' has a handler already, .*_payload_only"):
        handlers.register("email_send")(_with_job)
    assert handlers.get("email_send").function is _payload_only  # type: ignore[union-attr]


def test_a_registry_takes_over_another() -> None:
    bundled, own = Handlers(), Handlers()
    mail = bundled.register("email_send")(_payload_only)
    index = own.register("reindex")(_payload_only)
    own.include(bundled)
    assert own.kinds == {"email_send", "reindex"}
    assert set(map(id, own)) == {id(mail), id(index)}
    assert (len(own), len(bundled), own.get("virus_scan")) == (2, 1, None)


def test_a_registry_with_a_kind_twice_is_taken_over_not_at_all() -> None:
    bundled, own = Handlers(), Handlers()
    for kind in ("reindex", "email_send"):
        bundled.register(kind)(_payload_only)
    own.register("email_send")(_with_job)
    with pytest.raises(HandlerError):
        own.include(bundled)
    assert own.kinds == {"email_send"}


def test_a_handler_keeps_its_options() -> None:
    wait, retry = wait_fixed(1), retry_if_exception_type(OSError)
    options: dict[str, Any] = {"timeout": timedelta(0), "max_attempts": 5, "wait": wait, "retry": retry}
    handler = _register(_payload_only, **options, audit_done=True, audit_dlq=False)
    assert (handler.timeout, handler.max_attempts) == (timedelta(0), 5)
    assert (handler.policy.wait, handler.policy.retry) == (wait, retry)
    assert handler.audit == {JobStatus.DONE}
    assert _register(_payload_only).audit == {JobStatus.DLQ}


def test_a_new_job_has_the_attempts_of_its_handler_unless_given() -> None:
    handler = _register(_payload_only, max_attempts=5)
    assert handler.new(Payload(to="ada"), tenant_id=SYSTEM_TENANT_ID).max_attempts == 5
    assert handler.new({"to": "ada"}, tenant_id=SYSTEM_TENANT_ID, max_attempts=2).max_attempts == 2
    with pytest.raises(PayloadError, match=r"\$\.to"):
        handler.new(tenant_id=SYSTEM_TENANT_ID)
    with pytest.raises(TypeError):
        handler.new({"to": "ada"}, tenant_id=SYSTEM_TENANT_ID, dellay=5)


def test_what_a_handler_may_raise_says_what_was_asked_for() -> None:
    assert Snooze(timedelta(minutes=1)).delay == timedelta(minutes=1)
    assert (Stop("withdrawn").reason, str(Stop("withdrawn"))) == ("withdrawn", "withdrawn")
    assert DeadLetter(ValueError("x")).reason == "x"  # type: ignore[arg-type]

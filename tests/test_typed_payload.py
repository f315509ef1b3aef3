"""What a typed payload becomes on its way through the database, and what does not fit its type."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field
from typing_extensions import TypedDict

from jobqueue.errors import HandlerError, PayloadError
from jobqueue.payload import PayloadType
from tests.test_payload import Color, Model, Point, nested


class Address(BaseModel):
    street: str
    since: datetime | None = None


class Invoice(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    id: UUID
    total: Decimal
    due: date
    color: Color
    address: Address
    tags: set[str] = set()
    pair: tuple[int, str] = (1, "a")
    raw: bytes = b""
    pause: timedelta = timedelta(0)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gross(self) -> Decimal:
        return self.total * 2


@dataclass
class Shipment:
    id: UUID
    parts: list[Point] = field(default_factory=list)
    at: datetime = datetime(2030, 1, 1, tzinfo=UTC)


class Mail(TypedDict):
    to: str
    at: datetime


class Aliased(BaseModel):
    both: int = Field(alias="bothNames")
    read: int = Field(validation_alias="readName")
    written: int = Field(serialization_alias="writtenName")
    inner: dict[str, Annotated[int, Field(ge=0)]] = {}


INVOICE = Invoice(
    id=UUID(int=1),
    total=Decimal("0.10"),
    due=date(2030, 1, 1),
    color=Color.RED,
    address=Address(street="ä", since=datetime(2030, 1, 1, tzinfo=UTC)),
    tags={"a"},
    raw=b"x",
    pause=timedelta(seconds=1.5),
)
TYPED: dict[str, tuple[Any, Any]] = {
    "strict model": (Invoice, INVOICE),
    "dataclass": (Shipment, Shipment(UUID(int=1), [Point(1)])),
    "TypedDict": (Mail, {"to": "ada", "at": datetime(2030, 1, 1, tzinfo=UTC)}),
    "aliases": (Aliased, Aliased(bothNames=1, readName=2, written=3, inner={"x": 1})),
    "optional": (Invoice | None, INVOICE),
    "dict of a type": (dict[str, UUID], {"a": UUID(int=1)}),
}


@pytest.mark.parametrize(("annotation", "value"), TYPED.values(), ids=TYPED.keys())
def test_a_typed_payload_comes_back_as_it_went_in(annotation: Any, value: Any) -> None:
    payload_type = PayloadType.of(annotation)
    dumped = payload_type.dump(value)
    assert json.loads(json.dumps(dumped)) == dumped
    assert payload_type.parse(json.dumps(dumped)) == value


def test_a_payload_may_be_given_as_it_is_stored() -> None:
    for annotation, value in (TYPED[name] for name in ("dataclass", "TypedDict", "aliases", "dict of a type")):
        payload_type = PayloadType.of(annotation)
        dumped = payload_type.dump(value)
        assert payload_type.dump(dumped) == dumped


def test_a_payload_may_be_given_by_alias_or_by_name() -> None:
    payload_type = PayloadType.of(Aliased)
    by_name = {"both": 1, "read": 2, "written": 3, "inner": {}}
    assert payload_type.dump({"bothNames": 1, "readName": 2, "written": 3}) == by_name
    assert payload_type.dump(by_name) == by_name


@pytest.mark.parametrize("annotation", [dict, dict[str, Any], dict[str, object], Any])
def test_without_a_type_a_payload_is_what_json_carries(annotation: Any) -> None:
    payload_type = PayloadType.of(annotation)
    assert payload_type.dump({"a": [1]}) == {"a": [1]}
    assert payload_type.parse(json.dumps({"a": [1]})) == {"a": [1]}
    with pytest.raises(PayloadError):
        payload_type.dump({"a": UUID(int=1)})


class Loose(BaseModel):
    anything: Any = None
    number: float = 0
    text: str = ""


MISFITS: dict[str, tuple[Any, object, str]] = {
    "missing": (Mail, {"to": "ada"}, "$.at"),
    "wrong type": (Shipment, {"id": "nope"}, "$.id"),
    "inside": (Shipment, {"id": str(UUID(int=1)), "parts": [{"x": 1}, {"x": "one"}]}, "$.parts[1].x"),
    "no object": (Model, [1], "$"),
    "extra": (Invoice, INVOICE.model_dump() | {"more": 1}, "$.more"),
    "NUL": (Loose, Loose(text="a\x00"), "$.text"),
    "surrogate": (Loose, {"anything": {"b": "\ud800"}}, "$.anything.b"),
    "nan": (Loose, Loose(number=float("nan")), "$.number"),
    "not JSON": (Loose, Loose(anything=object()), "$"),
    "circle": (Loose, Loose(anything=(circle := {}, circle.setdefault("self", circle))[0]), "$"),  # type: ignore[var-annotated]
    "deep": (Loose, {"anything": nested(2_000)}, "$"),
    "no object after all": (list[int], [1], "$"),
}


@pytest.mark.parametrize(("annotation", "payload", "path"), MISFITS.values(), ids=MISFITS.keys())
def test_what_does_not_fit_the_type_is_refused_with_its_path(annotation: Any, payload: object, path: str) -> None:
    with pytest.raises(PayloadError) as refusal:
        PayloadType.of(annotation).dump(payload)
    assert path in dict(refusal.value.faults)


def test_a_stored_payload_that_no_longer_fits_is_refused_without_repeating_it() -> None:
    with pytest.raises(PayloadError) as refusal:
        PayloadType.of(Mail).parse(json.dumps({"to": 5, "at": "S3CRET"}))
    assert set(dict(refusal.value.faults)) == {"$.to", "$.at"}
    assert "S3CRET" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_a_secret_type_cannot_be_a_payload_by_accident() -> None:
    class WithSecret(BaseModel):
        password: SecretStr

    dumped = PayloadType.of(WithSecret).dump({"password": "S3CRET"})
    assert "S3CRET" not in str(dumped)


def test_what_pydantic_cannot_describe_is_refused_at_once() -> None:
    class Plain: ...

    with pytest.raises(HandlerError, match="use dict, a pydantic model"):
        PayloadType.of(Plain)

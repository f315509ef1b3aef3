"""What is kept of a failure is nobody else's data: no passwords, no parameters, no rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.ext.asyncio import create_async_engine

from jobqueue.failure import clean, failure_summary, failure_text
from tests.conftest import rendered
from tests.support.server import Databases
from tests.test_failure import raised, storable

SECRETS: dict[str, str] = {
    "user of a URL": "cannot reach postgresql://ada:S3CRET@db.example:5432/app",
    "user without a password": "https://S3CRET@example.com/hook failed",
    "at sign in a password": "smtp://ada:p@S3CRET@mail.example:587",
    "query of a URL": "GET https://example.com/hook?token=S3CRET&x=S3CRET#frag gave 500",
    "libpq parameters": "connection failed: host=db user=ada password=S3CRET dbname=app",
    "quoted parameter": "password='S3CRET and S3CRET' host=db",
    "spaces around": "PASSWORD = S3CRET",
    "keyword argument": "login(user='ada', password='S3CRET', api_key=\"S3CRET\")",
    "dict": "payload was {'password': 'S3CRET', \"token\": \"S3CRET\"}",
    "JSON": '{"secret": "S3CRET", "api_key":"S3CRET"}',
    "prefixed name": "SMTP_PASSWORD=S3CRET client_secret=S3CRET access_token=S3CRET",
    "header": "Authorization: Bearer S3CRET",
    "key of AWS": "aws_secret_access_key=S3CRET AWS_SECRET_ACCESS_KEY: S3CRET",
    "secret key": "SECRET_KEY=S3CRET, secretAccessKey='S3CRET', django.SECRET_KEY_FALLBACK = 'S3CRET'",
    "other keys": "AccountKey=S3CRET;access_key=S3CRET, PRIVATE-KEY: S3CRET",
    "short names": "Server=db;Uid=ada;Pwd=S3CRET; smtp_pass=S3CRET passphrase=S3CRET",
    "longer names": "X-Amz-Security-Token: S3CRET password_hash=S3CRET tokenValue=S3CRET db_credential=S3CRET",
    "cookie": "Cookie: session=S3CRET",
    "cookies": "Cookie: theme=dark; session=S3CRET; csrf=S3CRET\nHost: h",
    "cookie that is set": "{'Set-Cookie': 'session=S3CRET; Path=/; x=S3CRET'}",
    "other schemes": "Authorization: Token S3CRET",
    "JSON in a text": '"{\\"password\\": \\"S3CRET\\"}"',
    "bytes": "{'password': b'S3CRET S3CRET'}",
    "slash in a password": "postgres://u:p/S3CRET@host/db",
    "slashes and at signs in a password": "cannot reach postgresql://ada:p@S3CRET/S3CRET@S3CRET:4/@db.example/app",
    "slash in a numeric password": "amqp://u:12/S3CRET@host",
    "question mark in a password": "https://u:p?S3CRET#S3CRET@host/",
    "slash in a password of the web": "https://u:p/S3CRET@host/ and redis://:S3CRET/S3CRET@h",
    "several URLs": "tried a://u:S3CRET@h then b://u:S3CRET@h/x?S3CRET",
    "cut in the middle": "x" * 20 + " https://h/?" + "q" * 32_740 + " postgresql://ada:S3CRET@" + "h" * 100_000,
}


@pytest.mark.parametrize("given", SECRETS.values(), ids=SECRETS.keys())
def test_secrets_are_masked(given: str) -> None:
    for error in (ValueError(given), ConnectionError(5, given)):
        assert "S3CRET" not in failure_text(raised(error))
        assert "S3CRET" not in failure_summary(error)
    assert "S3CRET" not in clean(given)


def test_what_is_no_secret_stays() -> None:
    for harmless in (
        "the mail server mail.example:25 said: 450 4.2.0 ada@example.com try later",
        "https://example.com/orders/17#top gave 500",
        "KeyError: 'token'",
        "the password is too short",
        "secretary = 5",
        "token expected at line 3",
        "unexpected token: ')' at line 3",
        "the secret of the cookie is a key: butter",
        "passed: 3, failed: 2, bypass=1",
        "token_type=bearer, password_length: 3, SECRET_NAME=mail",
        "monkey=5, primary key=17, sort_key=name",
        "http://example.com:8080/users/ada@example.com gave 500",
        "https://social.example/@ada/17 is gone",
        "http://[::1]:8080/@ada",
        "postgresql://db.example:5432/app does not answer ada@example.com",
    ):
        assert clean(harmless) == harmless


# Each of these took seconds or minutes with a pattern that looks back again and again
SLOW = [
    "://" * 30_000,
    "://a?" * 20_000,
    "password " * 10_000,
    "password='" * 10_000,
    "a@" * 50_000,
    "://" + "a" * 90_000,
    "://:" * 15_000,
    "://a:b/" * 9_000,
    "://a:" + "/" * 60_000,
    "://a:" + "1/" * 30_000,
    "secret" * 10_000,
    "secret_" * 9_000,
    "token" + "_a" * 30_000,
    "secret\\" * 9_000,
    "password:" + " " * 60_000,
    "password=b'" * 6_000,
    "password='password=\"" * 3_000,
    "cookie:" * 9_000,
    "cookie:a=" * 7_000,
    "cookie" + " " * 60_000,
    "cookie: " + "a" * 60_000,
]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("given", SLOW, ids=lambda given: given[:12])
def test_no_text_takes_long(given: str) -> None:
    assert storable(clean(given))


STATEMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "unique key": ("INSERT INTO secret VALUES (CAST(:a AS text)), (:a)", {"a": "S3CRET"}),
    "check": ("INSERT INTO secret VALUES (:a)", {"a": "S3CRET" * 100}),
    "literal": ("SELECT 'S3CRET', nothing FROM secret WHERE a = :a", {"a": "S3CRET"}),
    "large detail": (
        "DO $$ BEGIN RAISE EXCEPTION 'refused' USING DETAIL = repeat('S3CRET ', 100000); END $$",
        {},
    ),
    "statement inside a function": (
        "DO $$ BEGIN EXECUTE 'SELECT ''S3CRET'' FROM nowhere'; END $$",
        {},
    ),
    "statement of 20 MB": ("SELECT '" + "S3CRET" * 3_400_000 + "' FROM nowhere", {}),
}
each_statement = pytest.mark.parametrize(("statement", "parameters"), STATEMENTS.values(), ids=STATEMENTS.keys())


@pytest.fixture(scope="module")
def secrets_url(databases: Databases) -> Iterator[str]:
    """A database with a table ``secret``."""
    with databases.empty() as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE secret (a text UNIQUE CHECK (length(a) < 100))")
        engine.dispose()
        yield rendered(url)


def keeps_no_secret(error: BaseException) -> None:
    rewrapped: list[BaseException] = [error]
    for wrapper in (ValueError(f"could not save: {error}"), RuntimeError(error)):
        try:
            raise wrapper from error
        except (ValueError, RuntimeError) as caught:
            rewrapped.append(caught)
    for one in rewrapped:
        kept = failure_text(one)
        assert "S3CRET" not in kept
        assert "S3CRET" not in failure_summary(one)
        assert storable(kept)
    assert "psycopg.errors." in failure_text(error) or "asyncpg" in failure_text(error)


@each_statement
def test_database_errors_are_kept_without_statement_parameters_and_rows(
    secrets_url: str, statement: str, parameters: dict[str, Any]
) -> None:
    engine = create_engine(secrets_url, poolclass=NullPool)
    with engine.connect() as connection, pytest.raises(DBAPIError) as failure:
        connection.execute(text(statement), parameters)
    keeps_no_secret(failure.value)
    assert failure.value.orig is not None
    keeps_no_secret(failure.value.orig)


@each_statement
async def test_errors_of_asyncpg_likewise(secrets_url: str, statement: str, parameters: dict[str, Any]) -> None:
    engine = create_async_engine(make_url(secrets_url).set(drivername="postgresql+asyncpg"), poolclass=NullPool)
    async with engine.connect() as connection:
        with pytest.raises(DBAPIError) as failure:
            await connection.execute(text(statement), parameters)
    keeps_no_secret(failure.value)


def test_a_value_that_the_server_quotes_is_masked(secrets_url: str) -> None:
    engine = create_engine(secrets_url, poolclass=NullPool)
    with engine.connect() as connection, pytest.raises(DBAPIError) as failure:
        connection.execute(text("SELECT CAST(CAST(:a AS text) AS integer)"), {"a": 'S3CRET "S3CRET"\nS3CRET'})
    assert 'invalid input syntax for type integer: "***"' in failure_text(failure.value)
    assert "S3CRET" not in failure_text(failure.value)


def test_a_statement_that_was_never_sent_is_not_kept_either(secrets_url: str) -> None:
    engine = create_engine(secrets_url, poolclass=NullPool)
    with engine.connect() as connection, pytest.raises(StatementError) as failure:
        connection.execute(text("SELECT 'S3CRET', :a, :b"), {"a": "S3CRET"})
    assert "S3CRET" not in failure_text(failure.value)
    assert "A value is required for bind parameter 'b'" in failure_text(failure.value)


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    engine = create_engine("postgresql+psycopg://ada:S3CRET@127.0.0.1:1/app?application_name=S3CRET")
    with pytest.raises(DBAPIError) as failure:
        engine.connect()
    kept = failure_text(failure.value)
    assert "S3CRET" not in kept
    assert "127.0.0.1" in kept

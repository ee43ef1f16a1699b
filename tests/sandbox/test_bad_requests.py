"""Requests that can't be understood: a clear error, and nothing moves."""

from __future__ import annotations

import http.client
import json
import socket
from urllib.parse import urlsplit

import pytest

GOOD = {
    "merchant_id": "m_bad",
    "refund_id": "r_1",
    "amount_minor": 100,
    "currency": "EUR",
    "payment_ref": None,
    "token": 1,
}


@pytest.fixture
def ask(gateway):
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=5.0)

    def ask(method: str, target: str, body: str | bytes | None = None, key: str | None = "m_bad/r_1"):
        headers = {} if key is None else {"Idempotency-Key": key}
        connection.request(method, target, body, headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())

    yield ask
    connection.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "not the JSON"),
        ("{", "not the JSON"),
        ("[1]", "list"),
        ("null", "NoneType"),
        (b"\xff\xfe{", "not the JSON"),
        ("[" * 60000, "not the JSON"),
        ('{"token": 1, "token": 2}', "twice"),
        (json.dumps({**GOOD, "ammount": 1}), "ammount"),
    ],
)
def test_a_body_that_is_no_refund_is_refused(ask, control, body, said):
    status, answer = ask("POST", "/refunds", body)
    assert (status, answer["error"]) == (400, "bad_request")
    assert said in answer["message"]
    assert "nothing was changed" in answer["message"]
    assert len(control.movements(merchant_id="m_bad")) == 0


@pytest.mark.parametrize("name", ["merchant_id", "refund_id", "amount_minor", "currency", "token"])
def test_a_missing_field_is_named(ask, control, name):
    body = {key: value for key, value in GOOD.items() if key != name}
    status, answer = ask("POST", "/refunds", json.dumps(body))
    assert (status, answer["message"]) == (400, f"missing: {name}; nothing was changed")
    assert len(control.movements(merchant_id="m_bad")) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("amount_minor", "-1"),
        ("amount_minor", "0"),
        ("amount_minor", "1.0"),
        ("amount_minor", "1e3"),
        ("amount_minor", "NaN"),
        ("amount_minor", "Infinity"),
        ("amount_minor", "true"),
        ("amount_minor", '"100"'),
        ("amount_minor", "null"),
        ("amount_minor", "9223372036854775808"),
        ("amount_minor", "1" * 5000),
        ("currency", '"eur"'),
        ("currency", '"EURO"'),
        ("currency", "978"),
        ("merchant_id", '""'),
        ("merchant_id", json.dumps("m" * 401)),
        ("refund_id", '"r\\n1"'),
        ("refund_id", '"\\ud800"'),
        ("refund_id", "1"),
        ("payment_ref", "[]"),
        ("token", "-1"),
        ("token", "null"),
        ("token", "1.5"),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(ask, control, name, value):
    fields = {key: json.dumps(field) for key, field in GOOD.items()} | {name: value}
    body = "{" + ", ".join(f'"{key}": {field}' for key, field in fields.items()) + "}"
    status, answer = ask("POST", "/refunds", body)
    assert (status, answer["error"]) == (400, "bad_request")
    assert answer["message"].endswith("nothing was changed")
    assert len(control.movements(merchant_id="m_bad")) == 0


@pytest.mark.parametrize("key", [None, "", "%00", "k" * 401])
def test_a_missing_or_unusable_key_is_refused(ask, control, key):
    status, answer = ask("POST", "/refunds", json.dumps(GOOD), key)
    assert (status, answer["error"]) == (400, "bad_request")
    assert "Idempotency-Key" in answer["message"]
    assert len(control.movements(merchant_id="m_bad")) == 0


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/refund?key=a", 404),
        ("POST", "/movements", 404),
        ("DELETE", "/refunds", 501),
        ("GET", "/refunds", 400),
        ("GET", "/refunds?ky=a", 400),
        ("GET", "/refunds?key", 400),
        ("GET", "/refunds?key=%zz&key=", 400),
        ("GET", "/held?key=a&count=x", 400),
        ("GET", "/held?key=a&timeout=nan", 400),
        ("GET", "/held?key=a&timeout=1e9", 400),
    ],
)
def test_what_is_not_there_is_said_in_json(ask, method, target, status):
    said, answer = ask(method, target, "{}" if method == "POST" else None)
    assert said == status
    assert answer["error"] != "no_such_key"
    assert ask("GET", "/calls")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 411),
        (["Content-Length: x"], 411),
        (["Content-Length: -1"], 411),
        (["Content-Length: " + "9" * 5000], 411),
        (["Content-Length: 65537"], 413),
        (["Transfer-Encoding: chunked"], 411),
    ],
    ids=["missing", "no number", "negative", "endless", "too great", "chunked"],
)
def test_a_body_of_unknown_or_too_great_a_length_is_refused(gateway, headers, status):
    parts = urlsplit(gateway.url)
    with socket.create_connection((parts.hostname, parts.port), 5.0) as client:
        client.sendall("\r\n".join(["POST /refunds HTTP/1.1", *headers, "", ""]).encode())
        with client.makefile("rb") as file:
            reply = file.read()
    assert reply.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"nothing was changed" in reply


def test_the_body_of_a_look_up_is_not_taken_for_the_next_request(ask):
    assert ask("GET", "/refunds?key=m_bad/never", "POST /refunds HTTP/1.1")[1]["error"] == "no_such_key"
    assert ask("GET", "/calls")[0] == 200


def test_a_request_cut_off_in_the_middle_moves_nothing(gateway, control, ask):
    parts = urlsplit(gateway.url)
    body = json.dumps(GOOD).encode()
    head = f"POST /refunds HTTP/1.1\r\nIdempotency-Key: m_bad/r_1\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port), 5.0) as client:
        client.sendall(head.encode() + body[:-1])
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert control.calls("m_bad/r_1").refunds == 0
    assert len(control.movements(merchant_id="m_bad")) == 0

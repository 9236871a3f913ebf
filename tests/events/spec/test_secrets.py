"""A spec with a secret is refused wherever the secret is, and the refusal does not repeat it; what looks similar passes."""

from __future__ import annotations

from typing import Any

import pytest

from events.spec import SpecError, check_spec

TOKENS = {
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA",
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "github": "ghp_" + "a1B2" * 9,
    "github, fine-grained": "github_pat_" + "11ABCDEFG0" * 3,
    "gitlab": "glpat-" + "a1b2c3d4e5" * 2,
    "hugging face": "hf_" + "abcdE" * 7,
    "slack": "xoxb-" + "123456789012-abc",
    "google": "AIza" + "Sy0123456789abcdefghijklmnopqrstuvw",
    "openai": "sk-" + "proj-a1b2c3d4e5f6g7h8",
    "nkey": "SU" + "AB2C" * 14,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlMTIz",
    "postgres": "postgresql://ann:hunter2@db.example.org/x",
    "in the middle": "--auth=nats://ann:hunter2@host:4222 --verbose",
}
NAMED = {
    "WANDB_API_KEY": "0a1b2c3d4e5f",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIbPxRfiCYz1",
    "HF_TOKEN": "deadbeef01",
    "DB_PASSWORD": "horse battery",
    "password": "hunter",
    "github-token": "abcdef12345",
    "MY.SECRET": "abcdefgh1",
}
INNOCENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "MAX_TOKENS": "4096",
    "PAD_TOKEN": "<|endoftext|>",
    "BOS_TOKEN": "50256",
    "UNK_TOKEN": "unknown-word",
    "WANDB_API_KEY_FILE": "/run/keys/wandb1",
    "WANDB_API_KEY": "/run/keys/wandb1",
    "AWS_ACCESS_KEY_ID": "some-name",
    "DB_PASSWORD": "$DB_PASSWORD_OF_NODE",
    "PASSWORD": "",
    "SECRET": "no",
    "DATA": "https://host:8443/path@2024",
    "REPOSITORY": "git@github.com:ann/repo",
    "PROXY": "http://${USER}:${PASS}@proxy:3128",
    "DISK": "sk-learn",
    "SEED": "SEEDOFTHERANDOMGENERATOR",
}


def document(**fields: Any) -> dict[str, Any]:
    return {"name": "app", "command": ["train"], "demand": {"cpu": 1}, **fields}


def refusal(**fields: Any) -> SpecError:
    with pytest.raises(SpecError) as refused:
        check_spec(document(**fields))
    return refused.value


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
def test_credentials_are_refused_everywhere(token: str) -> None:
    places: dict[str, dict[str, Any]] = {
        "command": {"command": ["train", token]},
        "resume": {"resume": ["train", "--key", token]},
        "checkpoint": {"checkpoint": ["save", token]},
        "env": {"env": {"SETTING": token}},
        "labels": {"labels": {"note": token}},
    }
    for field, fields in places.items():
        error = refusal(**fields)
        assert error.code == f"spec.{field}.secret"
        assert token not in str(error)
        assert token[-12:] not in str(error)


@pytest.mark.parametrize("name", NAMED)
def test_a_variable_with_the_name_of_a_secret_is_refused(name: str) -> None:
    error = refusal(env={name: NAMED[name]})
    assert (error.code, NAMED[name] in str(error)) == ("spec.env.secret", False)


@pytest.mark.parametrize("name", INNOCENT)
def test_harmless_values_pass(name: str) -> None:
    assert check_spec(document(env={name: INNOCENT[name]})).env == {name: INNOCENT[name]}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["eyJ-", "a://", "a:", "-----BEGIN ", "sk- ", "eyJaaaaaaaaaa.ey", "AKIA"])
def test_no_text_makes_the_search_slow(piece: str) -> None:
    """A search that takes quadratic time would run for many minutes."""
    check_spec(document(env={"A": (piece * 120_000)[:120_000], "API_KEY": "/" + (piece * 100_000)[:100_000]}))

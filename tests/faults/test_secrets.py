"""Secrets of a config stay out of run folders, reports, loggers, messages and sweeps."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from recsys.base import secrets
from recsys.base.console import log_to, say
from recsys.base.errors import UserError
from recsys.config.compose import compose, load_config, without_secrets
from recsys.distributed.failures import call, say_error
from recsys.job.check_built import check_job
from recsys.job.run_config import RunConfig
from recsys.sweep.record import Sweep, Trial, TrialRun, load

SECRET = "s3cret-pa55"  # pragma: allowlist secret


@pytest.fixture(autouse=True)
def _knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", {})


@pytest.mark.parametrize(
    "key",
    [
        *("logger.wandb.api_key", "logger.x.apikey", "+logger.x.hf_token", "model.password", "a.b.client-secret"),
        *("a.aws_secret_access_key", "engine.options.spark.hadoop.fs.s3a.secret.key", "a.keyPassword", "a.passwd"),
        *("engine.options.spark.hadoop.fs.azure.account.key.me.blob.net", "a.credentials", "token", "a.authToken"),
    ],
)
def test_keys_of_secrets(key: str) -> None:
    assert secrets.is_secret(key)
    assert secrets.mask_overrides([f"{key}={SECRET}"]) == [f"{key}=***"]


@pytest.mark.parametrize(
    "key",
    [
        *("data.items.key", "data.source.rename.token", "data.sparse.secret.column", "data.dense.password.fill"),
        *("model.key", "model.token_pooling", "model.tokens", "model.max_length", "optim.sparse.lr", "monkey"),
    ],
)
def test_keys_that_are_no_secrets(key: str) -> None:
    assert not secrets.is_secret(key)


def test_secrets_within_a_mapping() -> None:
    given = [f"+logger.mine={{_target_: a.B, api_key: '{SECRET}', level: 3}}", "data.items={key: id}"]
    assert secrets.mask_overrides(given) == ["+logger.mine={_target_: a.B, api_key: ***, level: 3}", given[1]]


def test_passwords_in_urls() -> None:
    found = secrets.masked({"data": {"root": f"ftp://me:{SECRET}@host:21/a", "spec": "hdfs://me@host:8020/a"}})
    assert found == {"data": {"root": "ftp://***@host:21/a", "spec": "hdfs://me@host:8020/a"}}
    assert secrets.mask_text(f"cannot open ftp://me:{SECRET}@host/a?b") == "cannot open ftp://***@host/a?b"


def config() -> Any:
    cfg = compose("train", [f"+logger.mine={{_target_: mine.Logger, api_key: {SECRET}, level: 3}}"])
    cfg.data.root = f"ftp://me:{SECRET}@host/a"
    return cfg


def test_a_saved_config_has_none_and_reads_them_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECSYS_TRUSTED_MODULES", "mine")
    OmegaConf.save(OmegaConf.create(without_secrets(RunConfig.of(config()).plain)), tmp_path / "config.yaml")
    assert SECRET not in (tmp_path / "config.yaml").read_text()
    assert load_config(tmp_path / "config.yaml").logger.mine.api_key == SECRET  # this process's own
    monkeypatch.setattr(secrets, "_known", {})
    masked = load_config(tmp_path / "config.yaml")
    assert (masked.logger.mine.api_key, masked.logger.mine.level, masked.data.root) == ("***", 3, "ftp://***@host/a")
    with pytest.raises(UserError, match=r"data.root: is a secret, .* environment variable RECSYS_SECRET_DATA_ROOT$"):
        check_job(masked, trains=False)
    root = config().data.root.replace("host", "other")
    monkeypatch.setenv("RECSYS_SECRET_DATA_ROOT", root)
    monkeypatch.setenv("RECSYS_SECRET_LOGGER_MINE_API_KEY", "another")
    restored = load_config(tmp_path / "config.yaml")
    assert (restored.logger.mine.api_key, restored.data.root) == ("another", root)


def test_messages_and_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_secrets(RunConfig.of(config()).plain)
    log_to(tmp_path / "train.log")
    try:
        say(f"connected with {SECRET}")
        say_error(f"logger.mine.api_key={SECRET}x: is wrong, model.dim=3")
        assert call(lambda: int(f"the key is {SECRET}")) == 1
    finally:
        log_to(None)
    for text in (capsys.readouterr().err, (tmp_path / "train.log").read_text()):
        assert SECRET not in text
        assert "connected with ***" in text and "logger.mine.api_key=*** is wrong, model.dim=3" in text
        assert "invalid literal for int() with base 10: 'the key is ***'" in text


def test_a_sweep_resumes_with_secrets_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [f"model.password={SECRET}", "model.dim=8"]
    sweep = Sweep(given, str(tmp_path), {}, "test/auc", "maximize", [], 1)
    sweep.trials = [Trial(0, {"+model.password": SECRET, "model.dim": "8"}, given, [TrialRun("0")])]
    sweep.save(tmp_path)
    assert SECRET not in (tmp_path / "sweep.json").read_text()
    assert json.loads((tmp_path / "sweep.json").read_text())["command"] == ["model.password=***", "model.dim=8"]
    monkeypatch.setenv("RECSYS_SECRET_MODEL_PASSWORD", SECRET)
    again = load(tmp_path)
    assert (again.command, again.trials) == (sweep.command, sweep.trials)

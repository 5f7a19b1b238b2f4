"""API keys stay where they belong: in the client's header and the gateway's memory."""

from pathlib import Path

import httpx

from tests.support.server import serving, wait_until

FILED, SET, WRONG = "filed-0b6e1d", "set-77c0a4", "wrong-5f2b90"


def test_keys_show_nowhere(tmp_path: Path, tiny_model: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(FILED + "\n")
    keys.chmod(0o600)
    environment = {
        "POMONA_API_KEYS": SET,
        "POMONA_LOG": "debug",
        "SPT_NOENV": "1",
    }  # titles leave the environment readable
    toml = f'[gateway]\napi_key_file = "{keys}"\n'
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    shown: list[str] = []
    with serving(tmp_path / "home", [tiny_model], toml=toml, environment=environment) as server:
        for key in (FILED, SET):
            for header in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                answers = [
                    httpx.post(f"{server.url}{path}", json=ask | {"stream": stream}, headers=header, timeout=60)
                    for path in ("/v1/chat/completions", "/v1/messages")
                    for stream in (False, True)
                ]
                answers += [
                    httpx.get(f"{server.url}{path}", headers=header, timeout=60)
                    for path in ("/admin/status", "/metrics", "/v1/models", "/health")
                ]
                assert {answer.status_code for answer in answers} == {200}
                broken = httpx.post(f"{server.url}/v1/chat/completions", json={}, headers=header, timeout=60)
                assert broken.status_code == 400
                shown += [f"{answer.headers} {answer.text}" for answer in (*answers, broken)]
        refused = [
            httpx.post(f"{server.url}/v1/chat/completions", json=ask, headers={"x-api-key": WRONG}),
            httpx.get(f"{server.url}/v1/models", params={"key": SET, "api_key": FILED}),
        ]
        assert [answer.status_code for answer in refused] == [401, 401]
        shown += [f"{answer.headers} {answer.text}" for answer in refused]
        shown += [argument for process in server.family() for argument in process.cmdline()]
        inherited = [str(process.environ()) for process in server.family()[1:]]
        assert all("POMONA_LOG" in variables for variables in inherited)
        shown += inherited
    wait_until(lambda: "scheduler" in server.log, 5, "the log is written")
    shown.append(server.log)
    for secret in (FILED, SET, WRONG):
        assert not any(secret in text for text in shown), secret

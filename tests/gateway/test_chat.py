from tests.gateway.conftest import Gateway

CHAT = "/v1/chat/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


async def test_a_chat_answer_has_text_reason_and_usage(gateway: Gateway) -> None:
    answer = (await gateway.http.post(CHAT, json=ASK)).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "Hello world"
    assert answer["choices"][0]["finish_reason"] == "stop"
    prompt = len(gateway.source.submitted[0].prompt)
    assert answer["usage"]["prompt_tokens"] == prompt
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["usage"]["total_tokens"] == prompt + 2

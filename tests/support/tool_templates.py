"""Hand-written chat templates that take tools, each in a dialect of its own."""

_TURNS = (
    "{% if tools %}{{ '<|im_start|>system\nTools: ' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + (' ' + message.name if message.name else '') + '\n' + message.content }}"
    "{% for tool_call in message.tool_calls or [] %}{% set tool_call = tool_call.function %}%s{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

JSON_CALLS = _TURNS.replace(
    "%s",
    '{{ \'<tool_call>{"name": "\' + tool_call.name + \'", "arguments": \' + (tool_call.arguments | tojson)'
    " + '}</tool_call>' }}",
)
"""`<tool_call>{"name": …, "arguments": …}</tool_call>`."""

XML_CALLS = _TURNS.replace(
    "%s",
    "{{ '<tool_call>\n<function=' + tool_call.name + '>\n' }}"
    "{% for name, value in tool_call.arguments.items() %}"
    "{{ '<parameter=' + name + '>\n' ~ value ~ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}",
)

PYTHONIC_CALLS = _TURNS.replace("%s", "{{ '<|tool_call_start|>[' + tool_call.name + '()]<|tool_call_end|>' }}")

HARMONY_CALLS = _TURNS.replace(
    "%s",
    "{{ '<|channel|>commentary to=functions.' + tool_call.name + '<|message|>' + (tool_call.arguments | tojson) }}",
)

"""The real model on schemas as applications have them: what it answers is valid, all of it."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pomona.workers.constraint.compiler import Compiler
from pomona.workers.constraint.tokens import tokens_of
from pomona.workers.engine import Engine, EngineLimits
from pomona.workers.messages import Constraint, Limits, Request, RequestId, Sampling
from pomona.workers.models.load import load
from pomona.workers.speculation.ngram import NgramProposer
from pomona.workers.vocabulary import Vocabulary
from tests.workers.engines import in_memory, run

KINDS: dict[str, dict[str, Any]] = {
    "text": {"type": "string", "maxLength": 40},
    "word": {"type": "string", "pattern": "^[A-Za-z]{2,12}$"},
    "int": {"type": "integer", "minimum": 0, "maximum": 1000},
    "rate": {"type": "number", "minimum": 0, "maximum": 5},
    "price": {"type": "string", "pattern": r"^\$[0-9]{1,4}\.[0-9]{2}$"},
    "flag": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
    "email": {"type": "string", "format": "email", "maxLength": 40},
    "uuid": {"type": "string", "format": "uuid"},
    "words": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 4},
    "ints": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 5},
    "mood": {"enum": ["positive", "negative", "neutral"]},
    "size": {"enum": ["S", "M", "L", "XL"]},
    "place": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
        "required": ["city", "country"],
        "additionalProperties": False,
    },
    "maybe": {"anyOf": [{"type": "string", "maxLength": 20}, {"type": "null"}]},
}
EVERYDAY = """
person name:text age:int email:email
contact name:text phone:maybe email:email
book title:text author:text year:int
film title:text rating:rate genres:words
review mood:mood rating:rate summary:text
sentiment label:mood confidence:rate
address street:text place:place
meeting title:text date:date start:time attendees:words
event name:text date:date place:place
recipe title:text minutes:int ingredients:words
shirt colour:word size:size price:price
product name:text price:price in_stock:flag tags:words
order id:uuid total:price paid:flag
invoice number:int date:date amount:price
ticket id:uuid subject:text urgent:flag
task title:text done:flag due:date
note title:text body:text tags:words
song title:text artist:text seconds:int
pet name:word species:word age:int
car brand:word model:text year:int electric:flag
flight from:place to:place date:date
hotel name:text stars:rate place:place
weather city:text degrees:int rain:flag
exercise name:text repetitions:ints
course title:text teacher:text hours:int
student name:text grades:ints
exam subject:text score:int passed:flag
question text:text options:words answer:word
quiz title:text points:ints
poll question:text options:words
profile nick:word bio:text public:flag
post title:text tags:words likes:int
comment author:word text:text mood:mood
message from:word to:word urgent:flag
email to:email subject:text body:text
translation source:word target:word text:text
keyword word:word weight:rate
entity name:text kind:word
summary title:text points:words
bug title:text severity:int steps:words
commit title:text files:words breaking:flag
host name:word port:int healthy:flag
user id:uuid email:email admin:flag
payment id:uuid amount:price date:date
shop name:text open:time close:time
train number:int departs:time from:place
patient name:text age:int symptoms:words
plant name:text water_days:int indoor:flag
city name:text country:word people:int
planet name:word moons:int rings:flag
""".strip().splitlines()


def schema_of(line: str) -> dict[str, Any]:
    fields = dict(field.split(":") for field in line.split()[1:])
    return {
        "type": "object",
        "properties": {name: KINDS[kind] for name, kind in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


@pytest.mark.campaign
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_fifty_everyday_schemas(smollm2_folder: Path, temperature: float) -> None:
    model, tokenizer = load(smollm2_folder)
    vocabulary = Vocabulary(tokenizer)
    compiler = Compiler(tokens_of(tokenizer, vocabulary))
    limits = EngineLimits(8, 256, 0.7)
    engine = Engine(
        model,
        vocabulary,
        frozenset(tokenizer.eos_token_ids),
        limits,
        in_memory(0),
        [NgramProposer()],
        compiler,
    )
    assert len(EVERYDAY) == 50
    requests = []
    for index, line in enumerate(EVERYDAY):
        asked = [{"role": "user", "content": f"Make up one {line.split()[0]} and describe it as JSON."}]
        requests.append(
            Request(
                id=RequestId(line),
                model="smollm2",
                prompt=tuple(tokenizer.apply_chat_template(asked, add_generation_prompt=True)),
                sampling=Sampling(seed=index, temperature=temperature),
                limits=Limits(max_tokens=400),
                cache_salt="",
                constraint=Constraint("json_schema", json.dumps(schema_of(line))),
            )
        )
    outcomes = run(engine, requests)
    compiler.close(5.0)
    for line in EVERYDAY:
        outcome = outcomes[line]
        assert outcome.finish is not None
        assert outcome.finish.reason == "stop", (line, outcome.text)
        jsonschema.validate(json.loads(outcome.text), schema_of(line), cls=jsonschema.Draft202012Validator)

"""llama.cpp's grammars keep their language on the way to llguidance."""

import pytest

from pomona.gateway.gbnf import is_gbnf, lark_of
from pomona.workers.messages import Constraint
from tests.workers.constraint.lexicons import accepts

ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" ["\\bfnrt/] )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]*)) ("." [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]*
"""


def grammar(text: str) -> Constraint:
    return Constraint("lark", lark_of(text))


@pytest.mark.parametrize(
    ("text", "valid", "invalid"),
    [
        (
            ARITHMETIC,
            ["a=1\n", "a +b*c = 12 \n", "(a)=b\nc=d\n", "a=1 \n \n", "x_1/(2)=3\n\n"],
            ["a=1", "a==1\n", "=1\n", "a=\n", "A=1\n", "a = 1\nb"],
        ),
        (JSON, ['{"a": [1, 2.5, null]}', "{}", '{"a": {"b": "x\\n"}}\n'], ["[]", '{"a"}', '{"a": 01}', "{'a': 1}"]),
        ('root ::= item+\nitem ::= "- " [a-z ]+ "\\n"', ["- a b\n- c\n", "- a \n"], ["- a", "a\n", "- \n\n"]),
        ('root ::= "ab" | [a-z] "bc"', ["ab", "abc", "xbc"], ["a", "bc", "abb"]),
        ('root ::= a b\na ::= [a-c]*\nb ::= "cc"', ["cc", "abccc", "ccc"], ["c", "ab"]),
        ("root ::= x{2,3}\nx ::= [0-9]{1,2} [.]?", ["12.34", "123456", "1.2.3."], ["1", "1234567", "a1"]),
        ('root ::= "say \\"hi\\" \\\\ \\x41" # a comment ::= \\u', ['say "hi" \\ A'], ["say hi", 'say "hi" \\ \\x41']),
        ("root ::= [^a-c\\]]+", ["xyz", "é🍎"], ["a", "]", "xa"]),
        ('root ::= Up-Case\nUp-Case ::= "x" Up-Case | "y"', ["y", "xxy"], ["x", "yx"]),
        ('root ::= start\nstart ::= "s"', ["s"], ["start"]),
    ],
)
def test_the_language_stays_the_same(text: str, valid: list[str], invalid: list[str]) -> None:
    assert [each for each in valid if not accepts(grammar(text), each)] == []
    assert [each for each in invalid if accepts(grammar(text), each)] == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('other ::= "a"', "root"),
        ("root ::= missing", "missing"),
        ('root ::= "a', "no GBNF"),
        ('root ::= "\\u00e9"', "escapes"),
        ('root ::= [\\U0001F600]', "escapes"),
        ("root ::= <[12]>", "no GBNF"),
        ("root ::= " + "(" * 5000, "GBNF|nested"),
    ],
)  # fmt: skip
def test_what_would_change_or_is_none_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        lark_of(text)


def test_lark_is_told_from_gbnf() -> None:
    assert is_gbnf(ARITHMETIC)
    assert is_gbnf("# first\nroot ::= x")
    assert not is_gbnf('start: "root ::= x"')
    assert not is_gbnf("%llguidance {}\nstart: /[a-z]+/")

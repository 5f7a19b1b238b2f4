"""Prompts to fit on where none are given: what people ask for, of many kinds."""

from pathlib import Path

from pomona.refusal import Refusal

PROMPTS = (
    "Explain to a child why the sky is blue.",
    "Write a Python function that merges two sorted lists.",
    "List the steps for repotting a house plant.",
    "Summarise in three sentences what a compiler does.",
    "Write a short letter that declines an invitation politely.",
    "What are the differences between TCP and UDP?",
    "Give me a recipe for a simple vegetable soup.",
    "Translate into French: The train to the coast leaves at nine.",
    "Describe the water cycle.",
    "Write a JSON object that describes a book with title, author, year and three tags.",
    "How does a bicycle stay upright?",
    "Tell a story about a lighthouse keeper who finds a map.",
    "Name five rivers in Europe and the countries that they flow through.",
    "Explain what recursion is, with an example in JavaScript.",
    "Write a product description for a pair of hiking boots.",
    "What should I look at before I rent an apartment?",
    "Rewrite this sentence in a formal tone: hey, can you send me the stuff by friday?",
    "Write a SQL query that counts orders for each customer in the last month.",
    "Explain the rules of chess to a beginner.",
    "Compare solar and wind power.",
    "Write a poem of eight lines about autumn.",
    "How do vaccines work?",
    "Make a table of the planets with their diameters.",
    "Write a unit test for a function that reverses a string.",
    "Plan a weekend in a city with two children.",
    "What caused the First World War?",
    "Explain compound interest with numbers.",
    "Write a shell command that finds the ten largest files in a folder.",
    "Describe how bread is made.",
    "Give advice to someone who gives a talk for the first time.",
    "What is photosynthesis?",
    "Write a dialogue between a customer and a clerk about a lost parcel.",
)


def read_prompts(file: Path | None) -> list[str]:
    """A prompt a line, without empty ones; those above where no file is named. Raises Refusal."""
    if file is None:
        return list(PROMPTS)
    try:
        lines = file.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{file} cannot be read as text: {error}") from error
    prompts = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if len(prompts) < 2:
        raise Refusal(f"{file} has fewer than two prompts; some are fitted on, others show what is gained")
    return prompts

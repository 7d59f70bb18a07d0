"""The page of the recipe's keys."""

from __future__ import annotations

from reference.keys import KEY_HEADS, keys_of
from reference.markdown import code, page, prose, table
from selfsame.config import experiment, recipe


def recipe_page() -> str:
    sections = [f"## `title`\n\nText, {code('')} by default: what reports call the run.\n"]
    named = {
        "method": "[a method's own options](methods.md)",
        "data": "[a data set's own options](data.md)",
        "net": "[a network's own options](networks.md)",
    }
    for name, kind in recipe.PARTS.items():
        rows = keys_of(kind, without=("options",))
        if name in named:
            rows.append(("", "", "", "", f"and {named[name]}"))
        about = "The method and its options." if kind is recipe.NamedPart else prose(kind)
        sections.append(f"## `[{name}]`\n\n{about}\n\n{table(KEY_HEADS, rows)}")
    figures = [(f"`{name}`", figure.label) for name, figure in experiment.FIGURES.items()]
    sections.append(
        "## Experiments\n\nA recipe file may also have `seeds` (whole numbers), `[[variant]]` tables (each with "
        "`title`, any part of a recipe, `grid` and `paper`), a `[grid]` over all variants, and `[paper]`:\n\n"
        + table(KEY_HEADS, keys_of(experiment.Paper, without=("figures",)))
        + "\nFigures of a paper are named by\n\n"
        + table(("name", "printed as"), figures)
    )
    opening = """
    A recipe is a TOML file: everything that defines a run. A run keeps its own as `recipe.toml`. What a file does not
    name has its default; for `selfsame train METHOD --data NAME` a tuned preset comes in between. See
    [the guide](../guides/compare.md#writing-one).
    """
    return page("Recipe keys", opening, *sections)

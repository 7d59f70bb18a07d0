"""The manual's reference, written from the code so that it cannot drift: a page by name, as Markdown.

What a key, an option or a field means stands beside it in the code as a comment; its type, default and allowed values
are read from the declaration and from the checks of the class. `python tools/reference FOLDER` writes the pages.
"""

from collections.abc import Callable

from reference.commands import commands_page
from reference.data_sets import data_page
from reference.deployment import deployment_page
from reference.formats import files_page
from reference.methods import methods_page, wire_page
from reference.networks import networks_page
from reference.python_api import python_page
from reference.recipes import recipe_page

PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "recipe.md": recipe_page,
    "data.md": data_page,
    "networks.md": networks_page,
    "methods.md": methods_page,
    "wire.md": wire_page,
    "deployment.md": deployment_page,
    "files.md": files_page,
    "python.md": python_page,
}

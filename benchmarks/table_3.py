"""What the programs about Table 3 share: the corpus, and the recipe at the reduced scale.

Not a benchmark itself.
"""

from annotated.training import Recipe

CORPUS = "multi30k-en-de"


def small_recipe(variation, options):
    """The reduced recipe; what a preset changes in the paper's changes it by the same factor."""
    paper, here = Recipe(), {
        "steps": options.steps, "warmup": options.warmup, "rate": options.rate, "beta2": Recipe.beta2,
        "source_tokens": options.tokens, "target_tokens": options.tokens,
    }
    for name, value in (variation.recipe if variation else {}).items():
        here[name] = value if name == "beta2" else type(here[name])(here[name] * value / getattr(paper, name))
    return Recipe(**here, evaluate_every=max(1, options.steps // 10), save_every=max(1, options.steps // 10), keep=1)

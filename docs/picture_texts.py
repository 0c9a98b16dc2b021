"""Alternative texts for the pictures of the gallery, for those who cannot see them."""

import re
from typing import Any

TEXTS = {
    "adult_parity": (
        "Left: the difference of the two rates over the epochs, for no constraint and four "
        "bounds; each curve ends below its bound. Right: accuracy against the difference "
        "on test data; a tighter bound costs up to three points."
    ),
    "compas_certificate": (
        "Upper confidence bounds of the false-negative rate of two groups against the "
        "allowed 0.25. Without a margin one of them reaches beyond it, with a margin both "
        "end well below it."
    ),
    "neyman_pearson": (
        "Left: missed shirts over the epochs, about half without the constraint and 5 "
        "percent with it. Right: false alarms against missed shirts on test data, for every "
        "threshold and for the two trained decisions."
    ),
    "finetune_kl": (
        "Test accuracy on the old and the new task over the steps. Plain fine-tuning loses "
        "the old task, from 93 to about 70 percent; with the constraint it stays above 90, "
        "and the new task is learned as well."
    ),
    "monotone_regression": (
        "Curves of predicted risk against prior offenses and against age for 40 people, red "
        "where they are not monotone: most without the constraint, a few with it."
    ),
    "lipschitz_robustness": (
        "Left: certified accuracy against the radius of the perturbation; with a bound of 5 "
        "it falls slowly, without a bound it is zero from 0.3 on. Right: the excess over "
        "the bound vanishes during training."
    ),
    "orthogonal_rnn": (
        "Left: eigenvalues of the recurrent matrix, scattered without the constraint and on "
        "the unit circle with it. Right: singular values between 0.1 and 3.3, and all equal "
        "to one."
    ),
    "sparse_budget": (
        "The mean digit, and the pixels that the networks with budgets of 90, 60 and 25 "
        "pixels still read: a patch in the middle that gets smaller."
    ),
    "heat_pinn": (
        "The solution of the heat equation over space and time, its error of at most a few "
        "thousandths, and the violations of initial and boundary values, which fall from 1 "
        "to about 0.001."
    ),
    "burgers_pinn": (
        "The wave at four times, with fixed weights and with constraints, against the exact "
        "solution; with constraints the initial ramp is sharper. Right: the constrained "
        "solution over space and time."
    ),
    "per_sample_bounds": (
        "Left: the losses of all samples in order; with the constraints the largest ones "
        "end at the bound of 0.2. Right: the ten digits with the largest multipliers, which "
        "are hard to read."
    ),
    "clustering_images": (
        "Left: the matrix XXᵀ ordered by cluster, three blocks on the diagonal. Right: "
        "twelve images of each cluster: bags, trousers and sneakers."
    ),
    "portfolio_certificate": (
        "Left: the efficient frontier, far left of the single assets. Right: the weights of "
        "thirty assets against the wanted return."
    ),
}


def scrape(block: Any, variables: dict[str, Any], conf: dict[str, Any]) -> str:
    """Save the figures of a block, and replace the texts that are guessed from their titles."""
    from sphinx_gallery.scrapers import matplotlib_scraper

    name = variables["src_file"].rsplit("plot_", 1)[1].removesuffix(".py")
    return re.sub(
        r":alt: .*", f":alt: {TEXTS[name]}", str(matplotlib_scraper(block, variables, conf))
    )

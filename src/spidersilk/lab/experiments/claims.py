"""What the paper says that can be measured: each sentence, and the rule of `report/rules.py` that judges it.

In the order of the paper. A sentence that is about several figures has a verdict for each of its `parts`.
"""

from __future__ import annotations

from dataclasses import dataclass

ALGORITHM_1, DENSE, SGD = "sparse-spiderboost", "spiderboost", "sgd"
PAIRS = ("image-cifar10-cnn", "image-cifar10-fc", "image-svhn-cnn", "image-svhn-fc", "image-mnist-fc")
FIGURES = ("figure1-left", "figure1-right", "figure2", "figure3")
LARGER = ("figure2-10k", "figure3-1m")  # the whole vocabulary, and more ratings: beyond the paper
SPLITS = ("split-cnn", "split-fc")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper. `text` quotes it; `ours` and `theirs` are methods, of which the rule compares the runs.

    `note` says what counts as the answer, or what is missing. `test` names the test that checks it.
    """

    text: str
    rule: str
    where: str = ""
    parts: tuple[str, ...] = ()
    ours: str = ""
    theirs: str = ""
    note: str = ""
    test: str = ""


def of_part(key: str) -> list[Claim]:
    """The claims about a part of an experiment."""
    return [claim for claim in CLAIMS if key in claim.parts]


CLAIMS = [
    # Abstract and Section 1.
    Claim(
        "these methods require at least double the number of operations per update", "counted", "Abstract, Section 1",
        note="a small step counts 2 b queries where one of SGD counts b, and anchors come to that",
        test="tests/theory/test_planner.py::test_cost_is_what_the_optimizer_counts",
    ),
    Claim(
        "Theoretically, our algorithm is at least as good as the best algorithm (SpiderBoost)",
        "proved in part", "Abstract, Sections 1 and 5",
        note="Theorem 1 has SpiderBoost's order only up to sqrt(b (k1 + k2) / k2), which is 14 at the paper's settings",
        test="tests/theory/test_planner.py::test_dense_theorems_have_spiderboosts_order",
    ),
    Claim(
        "our algorithm is at least as good as the best algorithm (SpiderBoost)",
        "within the factor", "Abstract; in runs", (*FIGURES, *PAIRS), ALGORITHM_1, DENSE,
        note="at most Theorem 1's sqrt(b (k1 + k2) / k2) times SpiderBoost's queries, at the step size of the "
        "experiments, for which the theorem promises nothing",
    ),
    Claim(
        "further excels in performance whenever the random-top-k operator captures gradient sparsity",
        "not run", "Abstract; theory: Section 3.3", note="the captured share (R_j) along these runs, beside their gain",
    ),
    Claim(
        "Empirically, our algorithm consistently outperforms SpiderBoost using various models on various tasks",
        "consistently", "Abstract", (*FIGURES, *PAIRS), ALGORITHM_1, DENSE, note="fewer queries on each task",
    ),
    Claim(
        "Empirically, our algorithm consistently outperforms SpiderBoost",
        "tuned, consistently", "Abstract; both tuned",
        ours=ALGORITHM_1, theirs=DENSE, note="both tuned, with the same number of trials",
    ),
    Claim(
        "Our operator reduces computational complexity", "time", "Abstract, Sections 1 and 2.1",
        note="seconds of a gradient difference at 10 % of the coordinates beside all of them; queries count k/d by "
        "definition",
    ),
    Claim(
        "these methods allow for greater learning rates than batch SGD", "larger steps", "Section 1",
        note="the best step size of each method of a tuning",
    ),
    Claim(
        "gradient sparsity can be used to significantly reduce the query complexity of variance reduction methods",
        "better", "Sections 1 and 5", PAIRS, "sparse-svrg", "svrg",
        note="of another method than SpiderBoost, which has its own row: SparseSVRG (ours) beside SVRG",
    ),
    Claim(
        "gradients tend to be \"sparse,\" having only a small fraction of large coordinates",
        "captured", "Section 1", note="the top 10 % of M hold at least half of a gradient's energy",
    ),
    Claim(
        "if sparsity is exhibited, using large gradient coordinates will not effect performance",
        "no worse", "Section 1", SPLITS, "sparse-svrg-0.1-0", "sparse-svrg-dense",
        note="the top 10 % alone beside all coordinates, SparseSVRG, at equal queries, not at equal steps",
    ),
    Claim(
        "Since larger batch gradients have lower variance, the initial estimate is quite accurate",
        "not run", "Abstract, Sections 1 and 2", note="the overlap of M's top k1 with that of the whole gradient",
    ),
    Claim(
        "we provide a cost-effective way (sparse back-propagation) to implement the random-top-k operator",
        "forward", "Sections 1 and 2.1", note="whether its gradient is unbiased; its seconds have a row of their own",
    ),
    # Section 2.
    Claim(
        "rtop_{1,1}(x, y) = (0, -96, 0, 0, 11)", "proved", "Section 2", note="the worked example",
        test="tests/operator/test_selection.py::test_the_papers_worked_example",
    ),
    Claim(
        "is an unbiased estimator of y", "proved", "Lemma 1",
        note="mean and variance over all draws of a small case, and over many of a large one",
        test="tests/operator/test_selection.py::test_lemma_1_mean_and_variance",
    ),
    Claim(
        "setting N_j to m does not impact performance in any significant way",
        "geometric", "Section 2", ("lengths-cnn", "lengths-fc"), ALGORITHM_1, "0.01",
        note="Algorithm 1 with loops of geometric length beside loops of m, at a tenth of the paper's step size",
    ),
    Claim(
        "The exponential moving average gradually incorporates information from subsequent small batch gradients",
        "not run", "Section 2", note="M's top k1 beside the gradient's along a loop, with the average and without",
    ),
    Claim(
        "We then use M as an approximation to the variance of each gradient coordinate",
        "not run", "Section 2", note="M beside the variance of each coordinate",
    ),
    Claim(
        "The cost of invoking rtop is dominated by the algorithm for selecting the top k coordinates",
        "selection", "Section 2",
    ),
    Claim(
        "We therefore expect our algorithm to perform quite well on libraries which support dynamic computation graphs",
        "time", "Section 2.1", note="the same seconds, in PyTorch",
    ),
    Claim(
        "the number of multiplications in the forward pass is reduced to k1 + k2", "counted", "Section 2.1",
        note="of one inner product, with one draw for both factors; the result is biased, as said above",
    ),
    # Section 3.
    Claim(
        "E|grad f(x_out)| <= eps (Theorems 1 and 2)", "proved", "Section 3",
        note="on problems whose constants are known; what the proofs misprint is in decisions.md",
        test="tests/theory/test_planner.py::test_the_promise_is_kept",
    ),
    Claim(
        "our algorithm has the same complexity as SpiderBoost under appropriate settings",
        "proved", "Section 3.2", note="same order in n and eps, with the factor sqrt(b (k1 + k2) / k2)",
        test="tests/theory/test_planner.py::test_dense_theorems_have_spiderboosts_order",
    ),
    Claim("In practice, m is usually much larger than b", "m above b", "Section 3.3"),
    Claim(
        "the complexity of our algorithm is O(sqrt((k1 + k2) / d)) smaller than that of SpiderBoost if our algorithm "
        "captures gradient sparsity", "proved", "Section 3.3",
        note="of Theorem 2, with the factor sqrt(b / min(b, m)), which is above 1 at the paper's own m and b",
        test="tests/theory/test_planner.py::test_complexity_ratio_of_theorem_2_is_sqrt_of_the_sparsity",
    ),
    # Section 4.1.
    Claim(
        "the maximum entropy", "counted", "Section 4.1, Table 1",
        note="log2 of the number of parameters: 18.234, 15.920 and 23.414 as printed",
        test="tests/lab/test_data.py::test_parameter_counts_give_the_papers_maxima",
    ),
    Claim("the entropy of the memory vector before", "entropy before", "Section 4.1, Table 1", ("table1",),
          note="pairs of model and data within one bit of the printed value"),
    Claim("and after training for 150 epochs", "entropy after", "Section 4.1, Table 1", ("table1",),
          note="pairs within one bit of the printed value; a collapsed run is none"),
    Claim(
        "For each model, the entropy at the beginning of training is almost maximal",
        "entropy almost maximal", "Section 4.1", ("table1",),
    ),
    Claim(
        "This is due to random initialization of model parameters", "not run", "Section 4.1",
        note="a start that is not random",
    ),
    Claim(
        "After 150 epochs, the entropy of M_t for the convolutional model drops to approximately 3",
        "entropy about 3", "Section 4.1", ("table1",), note="within one bit of 3, in a run that did not collapse",
    ),
    Claim(
        "certain models exhibit gradient sparsity during optimization", "entropy falls", "Sections 4 and 5",
        ("table1",), note="entropies that fall by more than a bit while the model trains",
    ),
    Claim(
        "the gradient structure depends primarily on the model and not the dataset",
        "entropy by model", "Section 4.1", ("table1",),
        note="pairs whose model's entropies differ between data sets by no more than the printed ones",
    ),
    Claim(
        "for Resnet-18, the entropy appears to vary minimally after 150 epochs",
        "entropy steady", "Section 4.1", ("table1",),
    ),
    Claim(
        "sparsity provides a significant advantage compared to using SpiderBoost alone",
        "better", "Section 4.1, Figure 1 right", ("figure1-right",), ALGORITHM_1, DENSE,
    ),
    Claim(
        "the MNIST dataset is fairly simple and convergence is rapidly achieved",
        "converged", "Section 4.1", ("figure1-right",), ALGORITHM_1, DENSE,
    ),
    Claim(
        "our sparsity algorithm works well on large neural networks, and non-trivial datasets",
        "better", "Section 4.1, Figure 1 left", ("figure1-left",), ALGORITHM_1, DENSE,
    ),
    Claim(
        "Resnet-18 on CIFAR-10 does not do as well due to the gradient density",
        "smaller gain", "Section 4.1", ("figure1-left", "figure1-right"), ALGORITHM_1, DENSE,
        note="a smaller gain over SpiderBoost than on MNIST; the reason is not tested",
    ),
    Claim(
        "provides a dampening effect on variance", "not run", "Sections 4.1 and 5",
        note="the variance of v of both methods along a run; by Lemma 1 one draw of rtop adds variance",
    ),
    # Section 4.2.
    Claim(
        "SpiderBoost is slightly worse than SGD", "slightly worse", "Section 4.2, Figure 2(a)",
        ("figure2", "figure2-10k"), DENSE, SGD,
    ),
    Claim(
        "sparsity provides a noticeable improvement over SGD", "better", "Section 4.2, Figure 2(a)",
        ("figure2", "figure2-10k"), ALGORITHM_1, SGD,
    ),
    # Section 4.3.
    Claim(
        "We believe this is a natural way to utilize the low variance at the beginning of the inner loop",
        "not run", "Section 4.3", note="the same runs with a constant step size",
    ),
    Claim(
        "is a fair comparison to an exponential decay learning rate schedule for SGD",
        "no worse", "Section 4.3", ("figure3", "figure3-1m"), SGD, "sgd-tuned",
        note="fair: the paper's SGD is no worse than SGD at a step size that was tuned; SGD alone is tuned here, both "
        "are in a row of Section 5",
    ),
    Claim(
        "We see SpiderBoost is slightly worse than SGD", "slightly worse", "Section 4.3, Figure 2(b)",
        ("figure3", "figure3-1m"), DENSE, SGD,
    ),
    Claim(
        "sparsity provides a slight improvement over SGD", "slightly better", "Section 4.3, Figure 2(b)",
        ("figure3", "figure3-1m"), ALGORITHM_1, SGD,
    ),
    Claim(
        "improvement over SGD", "controls", "Sections 4.2 and 4.3; beside a control",
        ("figure2", "figure3"), ALGORITHM_1,
        note="a control: plain SGD that takes a loop's steps at once on the anchor's batch, or their mean one by one "
        "(results/paper/controls_*.json); of Figure 2 (a) it was not run",
    ),
    Claim(
        "especially in the first few epochs", "early", "Section 4.3", ("figure3", "figure3-1m"), ALGORITHM_1, SGD,
        note="a larger gain over SGD in the first 5 N than over the whole run",
    ),
    # Section 5 and the appendix.
    Claim(
        "the techniques developed in this paper can be adapted to other variance reduction algorithms",
        "better", "Section 5", PAIRS, "sparse-svrg", "svrg", note="adapted to SVRG: SparseSVRG beside SVRG",
    ),
    Claim(
        "our algorithm provides a way to explicitly control the gradient query complexity", "counted", "Section 5",
        note="a small step counts 2 b (k1 + k2) / d queries",
        test="tests/theory/test_planner.py::test_cost_is_what_the_optimizer_counts",
    ),
    Claim(
        "The results of our comparison to SpiderBoost validates this assumption", "not run", "Section 5",
        note="Theorem 2's condition on R_j along these runs",
    ),
    Claim(
        "the top-k operator generally outperforms the random-k operator", "splits", "Section 5", SPLITS,
        "0.1-0", "0-0.1", note="top 10 % beside random 10 %: Table 1 alone has no run of either",
    ),
    Claim(
        "takes advantage of the superior performance of the top-k operator while eliminating bias",
        "splits, unbiased", "Section 5", SPLITS, "0.05-0.05", "0.1-0", note="5 % + 5 % beside the top 10 % alone",
    ),
    Claim(
        "Not every problem we tested exhibited sparsity structure", "entropy stays", "Section 5", ("table1",),
        note="some model's entropy after training is as near to its maximum as the values that the paper calls so",
    ),
    Claim(
        "Even when there is no structure, our algorithm reduces to a random sampling of k1 + k2 coordinates",
        "proved in part", "Section 5", note="for k1 = 0; with k1 > 0 the top k1 are kept and not rescaled",
        test="tests/operator/test_selection.py::test_corners",
    ),
    Claim(
        "Sparse SpiderBoost outperforms SpiderBoost when no sparsity structure is present",
        "better", "Section 5", ("figure1-left",), ALGORITHM_1, DENSE,
        note="ResNet-18, whose entropy stays near its maximum (Table 1)",
    ),
    Claim(
        "with additional effort, variance reduction methods are competitive with SGD", "no worse", "Section 5",
        ("figure2", "figure3", "figure2-10k", "figure3-1m"), ALGORITHM_1, SGD,
        note="Algorithm 1 beside the paper's SGD",
    ),
    Claim(
        "with additional effort, variance reduction methods are competitive with SGD",
        "tuned, no worse", "Section 5; both tuned",
        ours=ALGORITHM_1, theirs=SGD, note="both tuned, with the same number of trials",
    ),
    Claim(
        "SpiderBoost with various values of sparsity", "range", "Appendix B, a figure without a sentence",
        ("sparsity-cnn", "sparsity-fc"), ALGORITHM_1, DENSE,
        note="Algorithm 1 at each k/d no worse than with all coordinates",
    ),
]  # fmt: skip

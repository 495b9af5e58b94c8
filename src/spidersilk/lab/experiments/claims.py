"""What the paper says that can be measured: each sentence, and the rule of `report/rules.py` that judges it.

In the order of the paper. A sentence that is about several figures has a verdict for each of its `parts`.
"""

from __future__ import annotations

from dataclasses import dataclass

ALGORITHM_1, DENSE, SGD = "sparse-spiderboost", "spiderboost", "sgd"
PAIRS = ("image-cifar10-cnn", "image-cifar10-fc", "image-svhn-cnn", "image-svhn-fc", "image-mnist-fc")
FIGURES = ("figure1-left", "figure1-right", "figure2", "figure3")
TABLE_1 = ("table1",)
LARGER = ("figure2-10k", "figure3-1m")  # the whole vocabulary, and more ratings: beyond the paper
SPLITS, LENGTHS, SWEEP = (tuple(f"{what}-{m}" for m in ("cnn", "fc")) for what in ("split", "lengths", "sparsity"))


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper. `text` quotes it; `ours` and `theirs` are methods, of which the rule compares the runs,
    or names of runs with commas.

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


COMPETITIVE = (
    "The results of our experiments on natural language processing and matrix factorization demonstrate that, with "
    "additional effort, variance reduction methods are competitive with SGD"
)
TUNED = "both tuned, with the same number of trials; logistic regression is not in the paper"
DENSITIES = ("0.01", "0.02", "0.05", "0.1", "0.2", "0.5")
PLANNER, SELECTION = "tests/theory/test_planner.py::test_", "tests/operator/test_selection.py::test_"
CLAIMS = [
    # Abstract and Section 1.
    Claim("these methods require at least double the number of operations per update", "counted", "Abstract, Section 1",
          note="a small step counts 2 b queries where one of SGD counts b, and anchors come to that",
          test=PLANNER + "cost_is_what_the_optimizer_counts"),
    Claim("Theoretically, our algorithm is at least as good as the best algorithm (SpiderBoost)",
          "proved in part", "Abstract, Sections 1 and 5",
          note="Theorem 1 has SpiderBoost's order only up to sqrt(b (k1 + k2) / k2), which is 14 at the settings of "
          "Figures 1 and 2 (b) and 6.3 at those of Figure 2 (a)",
          test=PLANNER + "dense_theorems_have_spiderboosts_order"),
    Claim("Theoretically, our algorithm is at least as good as the best algorithm (SpiderBoost)",
          "no worse", "Abstract; in runs", (*FIGURES, *PAIRS), ALGORITHM_1, DENSE,
          note="no more queries than SpiderBoost, at the step size of the experiments, for which the theorem promises "
          "nothing; it allows the factor of the row before"),
    Claim(
        "further excels in performance whenever the random-top-k operator captures gradient sparsity",
        "not run", "Abstract; theory: Section 3.3", note="the captured share (R_j) along these runs, beside their gain",
    ),
    Claim("Empirically, our algorithm consistently outperforms SpiderBoost using various models on various tasks",
          "consistently", "Abstract", (*FIGURES, *PAIRS), ALGORITHM_1, DENSE, note="fewer queries on each task"),
    Claim("Empirically, our algorithm consistently outperforms SpiderBoost",
          "tuned, consistently", "Abstract; both tuned", ours=ALGORITHM_1, theirs=DENSE, note=TUNED),
    Claim("Our operator reduces computational complexity", "time", "Abstract, Sections 1 and 2.1",
          note="seconds of a gradient difference at 10 % of the coordinates beside all of them; queries count k/d by "
          "definition"),
    Claim("these methods allow for greater learning rates than batch SGD", "larger steps", "Section 1",
          note="the best step size of each method of a tuning"),
    Claim("gradient sparsity can be used to significantly reduce the query complexity of variance reduction methods",
          "better", "Sections 1 and 5", (*FIGURES, *PAIRS), ALGORITHM_1, DENSE,
          note="the paper's method, by the comparisons of “consistently outperforms”; SVRG has a row of Section 5"),
    Claim("gradients tend to be \"sparse,\" having only a small fraction of large coordinates",
          "captured", "Section 1", note="the top 10 % of M hold at least half of the energy"),
    Claim(
        "In principle, if sparsity is exhibited, using large gradient coordinates will not effect performance",
        "named, no worse", "Section 1", SPLITS, "sparse-svrg-0.1-0", "svrg",
        note="the top 10 % alone beside all coordinates, at equal queries, not at equal steps; Algorithm 1: not run",
    ),
    Claim("and will significantly reduce the number of operations required to update model parameters", "time",
          "Section 1", note="the same seconds"),
    Claim("The first phase captures sparsity patterns", "captured", "Section 1", note="the same share"),
    Claim("Since larger batch gradients have lower variance, the initial estimate is quite accurate",
          "not run", "Abstract, Sections 1 and 2",
          note="the overlap of M's top k1 with that of the whole gradient; what M captures is told with “sparse”"),
    Claim("we provide a cost-effective way (sparse back-propagation) to implement the random-top-k operator",
          "time", "Sections 1 and 2.1", note="whether it is cost-effective, by the same seconds"),
    Claim("we provide a cost-effective way (sparse back-propagation) to implement the random-top-k operator",
          "forward", "Sections 1 and 2.1", note="whether it is the operator of Lemma 1, which is unbiased"),
    # Section 2.
    Claim("rtop_{1,1}(x, y) = (0, 4 y_2, 0, 0, y_5) = (0, -96, 0, 0, 11)", "proved", "Section 2",
          note="the worked example", test=SELECTION + "the_papers_worked_example"),
    Claim("If k1 + k2 = d, rtop(x, y) = y. On the other hand, if k1 = 0, rtop(x, y) does not depend on x", "proved",
          "Section 2", note="with ties, the lower index first", test=SELECTION + "corners"),
    Claim("rtop(x, y) is linear in y", "proved", "Section 2", note="for one draw", test=SELECTION + "linear_in_y"),
    Claim("is an unbiased estimator of y", "proved", "Lemma 1",
          note="mean and variance over all draws of a small case, and over many of a large one",
          test=SELECTION + "lemma_1_mean_and_variance"),
    Claim("In practice, as observed by (Lei et al., 2017), setting N_j to m does not impact performance in any "
          "significant way", "named, the same", "Section 2", LENGTHS,
          "spiderboost-0.1-geometric,sparse-spiderboost-0.1-geometric,sparse-spiderboost-0.01-geometric",
          "spiderboost-0.1-fixed,sparse-spiderboost-0.1-fixed,sparse-spiderboost-0.01-fixed",
          note="loops of geometric length beside loops of m, at the paper's step size, 0.1, and at a tenth of it"),
    Claim("The exponential moving average gradually incorporates information from subsequent small batch gradients",
          "not run", "Section 2", note="M's top k1 beside the gradient's along a loop, with the average and without"),
    Claim("We then use M_t as an approximation to the variance of each gradient coordinate in our rtop operator",
          "not run", "Section 2", note="M beside the variance of each coordinate"),
    Claim(
        "The cost of invoking rtop is dominated by the algorithm for selecting the top k coordinates, which has linear "
        "worst case complexity", "selection", "Section 2",
    ),
    Claim(
        "will construct the sparse computation graph in the forward pass, which makes the required sparse "
        "backpropagation trivial", "forward", "Section 2.1", note="whether that graph's gradient is the operator's",
    ),
    Claim(
        "We therefore expect our algorithm to perform quite well on libraries which support dynamic computation graphs",
        "time", "Section 2.1", note="the same seconds, in PyTorch",
    ),
    Claim("the number of multiplications in the forward pass is reduced to k1 + k2", "counted", "Section 2.1",
          note="of one inner product, with one draw for both factors; the result is biased, as said above"),
    Claim("back-propagation will compute the gradient of the objective with respect to model parameters in linear time",
          "time", "Section 2.1", note="the same seconds: linear in k1 + k2 would be a tenth"),
    # Section 3.
    Claim("For any T >= T(eps), E||grad f(x_out)|| <= eps", "proved", "Theorem 1",
          note="on problems whose constants are known; what the proofs misprint is in decisions.md",
          test=PLANNER + "the_promise_is_kept"),
    Claim("If E R_T <= eps^2 k2 / (3 (d - k1 - k2) m), then E||grad f(x_out)|| <= eps", "proved in part", "Theorem 2",
          note="its settings are as printed; no run has its condition", test=PLANNER + "theorem_2_as_printed"),
    Claim("as long as b = O(1), k1 = O(k2), our algorithm has the same complexity as SpiderBoost under appropriate "
          "settings", "proved", "Section 3.2", note="same order in n and eps, with the factor sqrt(b (k1 + k2) / k2)",
          test=PLANNER + "dense_theorems_have_spiderboosts_order"),
    Claim("The penalty term O(sqrt(b (k1 + k2) / k2)) is due to the information loss by sparsification", "disproved",
          "Section 3.2", note="with k1 = 0 and k2 = d nothing is lost, and the term is sqrt(b)"),
    Claim("it is easy to see that g <= G", "counted", "Section 3.3", note="|E z|^2 is at most E |z|^2"),
    Claim("If our algorithm succeeds in capturing sparsity, both g and G will be small", "not run", "Section 3.3",
          note="g and G along these runs"),
    Claim("In practice, m is usually much larger than b", "m above b", "Section 3.3"),
    Claim("the complexity of our algorithm is O(sqrt((k1 + k2) / d)) smaller than that of SpiderBoost if our algorithm "
          "captures gradient sparsity", "proved", "Section 3.3",
          note="of Theorem 2, for m = B d / (b (k1 + k2)), which would be 100, 20 and 100 in the paper's three "
          "experiments; they have m = 10, 2 and 10, for which it does not hold",
          test=PLANNER + "complexity_ratio_of_theorem_2_is_sqrt_of_the_sparsity"),
    # Section 4.1.
    Claim("the maximum entropy", "counted", "Section 4.1, Table 1",
          note="log2 of the number of parameters: 18.234, 15.920 and 23.414 as printed",
          test="tests/lab/test_data.py::test_parameter_counts_give_the_papers_maxima"),
    Claim("the entropy of the memory vector before", "entropy before", "Section 4.1, Table 1", TABLE_1,
          note="pairs of model and data within one bit of the printed value"),
    Claim("and after training for 150 epochs", "entropy after", "Section 4.1, Table 1", TABLE_1,
          note="pairs within one bit of the printed value; a collapsed run is none"),
    Claim("For each model, the entropy at the beginning of training is almost maximal", "entropy almost maximal",
          "Section 4.1", TABLE_1),
    Claim("This is due to random initialization of model parameters", "not run", "Section 4.1",
          note="a start that is not random"),
    Claim("After 150 epochs, the entropy of M_t for the convolutional model drops to approximately 3",
          "entropy about 3", "Section 4.1", TABLE_1, note="within one bit of 3, in a run that did not collapse"),
    Claim(
        "which suggests a substantial amount of gradient structure", "entropy of the dead", "Section 4.1",
        note="whether the printed entropies of the CNN are above log2 10 = 3.32, the most that a network with no live "
        "unit has",
    ),
    Claim("certain models exhibit gradient sparsity during optimization", "entropy falls", "Sections 4 and 5", TABLE_1,
          note="entropies that fall by more than a bit while the model trains"),
    Claim(
        "the gradient structure depends primarily on the model and not the dataset", "entropy by model", "Section 4.1",
        TABLE_1, note="pairs whose model's entropies differ between data sets by no more than the printed ones",
    ),
    Claim("for Resnet-18, the entropy appears to vary minimally after 150 epochs", "entropy steady", "Section 4.1",
          TABLE_1),
    Claim("sparsity provides a significant advantage compared to using SpiderBoost alone",
          "better", "Section 4.1, Figure 1 right", ("figure1-right",), ALGORITHM_1, DENSE),
    Claim("the MNIST dataset is fairly simple and convergence is rapidly achieved", "converged", "Section 4.1",
          ("figure1-right",), ALGORITHM_1, DENSE),
    Claim("our sparsity algorithm works well on large neural networks, and non-trivial datasets",
          "better", "Section 4.1, Figure 1 left", ("figure1-left",), ALGORITHM_1, DENSE),
    Claim(
        "We believe Resnet-18 on CIFAR-10 does not do as well due to the gradient density we observe for Resnet-18 in "
        "general", "smaller gain", "Section 4.1", ("figure1-left", "figure1-right"), ALGORITHM_1, DENSE,
        note="a smaller gain over SpiderBoost than on MNIST; the reason is not tested",
    ),
    Claim("provides a dampening effect on variance", "not run", "Sections 4.1 and 5",
          note="the variance of v of both methods along a run; by Lemma 1 one draw of rtop adds variance"),
    # Section 4.2.
    Claim("SpiderBoost is slightly worse than SGD", "slightly worse", "Section 4.2, Figure 2(a)",
          ("figure2", "figure2-10k"), DENSE, SGD),
    Claim("sparsity provides a noticeable improvement over SGD", "better", "Section 4.2, Figure 2(a)",
          ("figure2", "figure2-10k"), ALGORITHM_1, SGD),
    # Section 4.3.
    Claim("We believe this is a natural way to utilize the low variance at the beginning of the inner loop",
          "not run", "Section 4.3", note="the same runs with a constant step size"),
    Claim(
        "We believe this [...] is a fair comparison to an exponential decay learning rate schedule for SGD",
        "no worse", "Section 4.3", ("figure3", "figure3-1m"), SGD, "sgd-tuned",
        note="fair: the paper's SGD is no worse than SGD at a step size that was tuned; SGD alone is tuned here, both "
        "are in a row of Section 5",
    ),
    Claim("We see SpiderBoost is slightly worse than SGD", "slightly worse", "Section 4.3, Figure 2(b)",
          ("figure3", "figure3-1m"), DENSE, SGD),
    Claim("sparsity provides a slight improvement over SGD", "slightly better", "Section 4.3, Figure 2(b)",
          ("figure3", "figure3-1m"), ALGORITHM_1, SGD,
          note="SGD's step is 0.001 from 20 N on, where its loss hardly falls: the ratio grows with the length"),
    Claim(
        "sparsity provides a slight improvement over SGD", "controls", "Section 4.3; beside controls", ("figure3",),
        ALGORITHM_1, note="two controls: plain SGD that takes the steps of a loop at once, on a batch of the anchor's "
        "size, and plain SGD that takes their mean one by one; Figure 2 (a) has no run of either",
    ),
    Claim("sparsity provides a slight improvement over SGD, especially in the first few epochs", "early", "Section 4.3",
          ("figure3", "figure3-1m"), ALGORITHM_1, SGD,
          note="a larger gain over SGD in the first 5 N than over the whole run"),
    # Section 5 and the appendix.
    Claim("the techniques developed in this paper can be adapted to other variance reduction algorithms",
          "better", "Section 5", PAIRS, "sparse-svrg", "svrg", note="adapted to SVRG: SparseSVRG beside SVRG"),
    Claim("our algorithm provides a way to explicitly control the gradient query complexity", "counted", "Section 5",
          note="a small step counts 2 b (k1 + k2) / d queries", test=PLANNER + "cost_is_what_the_optimizer_counts"),
    Claim("The results of our comparison to SpiderBoost validates this assumption", "not run", "Section 5",
          note="Theorem 2's condition on R_j along these runs"),
    Claim("Table 1 also supports the results in (Stich et al., 2018), which shows that the top-k operator generally "
          "outperforms the random-k operator", "named, better", "Section 5", SPLITS,
          "sparse-spiderboost-0.1-0,sparse-svrg-0.1-0", "sparse-spiderboost-0-0.1,sparse-svrg-0-0.1",
          note="the top 10 % beside a random 10 %; Table 1 itself has no run of either"),
    Claim(
        "Our random-top-k operator takes advantage of the superior performance of the top-k operator while eliminating "
        "bias via a secondary random-k operator", "named, better", "Section 5", SPLITS,
        "sparse-spiderboost-0.05-0.05,sparse-svrg-0.05-0.05", "sparse-spiderboost-0.1-0,sparse-svrg-0.1-0",
        note="5 % + 5 % beside the top 10 % alone",
    ),
    Claim("Not every problem we tested exhibited sparsity structure", "entropy stays", "Section 5", TABLE_1,
          note="some model's entropy after training is as near to its maximum as the values that the paper calls so"),
    Claim("Even when there is no structure, our algorithm reduces to a random sampling of k1 + k2 coordinates",
          "proved in part", "Section 5", note="for k1 = 0; with k1 > 0 the top k1 are kept and not rescaled",
          test=SELECTION + "corners"),
    Claim("Empirically, we see that Sparse SpiderBoost outperforms SpiderBoost when no sparsity structure is present",
          "better", "Section 5", ("figure1-left",), ALGORITHM_1, DENSE,
          note="ResNet-18, whose entropy stays near its maximum (Table 1)"),
    *(Claim(COMPETITIVE, "no worse", f"Section 5; {name}", ("figure2", "figure3", "figure2-10k", "figure3-1m"), method,
            SGD, note=f"{name} beside the paper's SGD")
      for name, method in (("Algorithm 1", ALGORITHM_1), ("SpiderBoost", DENSE))),
    *(Claim(COMPETITIVE, "tuned, no worse", f"Section 5; {name} and SGD tuned", ours=method, theirs=SGD, note=TUNED)
      for name, method in (("Algorithm 1", ALGORITHM_1), ("SpiderBoost", DENSE), ("SVRG", "svrg"))),
    Claim("SpiderBoost with various values of sparsity", "named, no worse", "Appendix B, a caption that claims nothing",
          SWEEP, ",".join(f"{ALGORITHM_1}-{k}" for k in DENSITIES), ",".join([f"{ALGORITHM_1}-1"] * len(DENSITIES)),
          note="our question: Algorithm 1 at each k/d no worse than with all coordinates"),
]  # fmt: skip

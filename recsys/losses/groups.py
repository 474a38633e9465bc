"""Losses that compare the rows of a group, such as the documents of a query or the items of a session.

The rows of a group must be neighbours in a batch (data.group.together). Each loss is the mean over rows of the loss of
the row's group, so that a group counts by its number of rows. Groups in which there is nothing to compare add 0.
"""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from recsys.base.ranges import MAX_GRADE, Count, Share
from recsys.losses.ranking import RankingLoss


class GroupLoss(nn.Module, RankingLoss):
    """Base of losses within groups.

    They do not depend on the level of a group's predictions. With `pointwise` above 0, the default loss of the label's
    kind keeps predictions near the labels, so that they can be read as probabilities or grades (Sheng et al., Joint
    Optimization of Ranking and Calibration with Contextualized Hybrid Model, 2022, https://arxiv.org/abs/2208.06164).

    Args:
        pointwise: share p of the loss of single rows: p x loss of rows + (1 - p) x loss of groups. LabelLosses adds it.
    """

    kinds = ("binary", "regression")
    within_groups = True

    def __init__(self, *, pointwise: Share = 0.0) -> None:
        super().__init__()
        self.pointwise = pointwise

    def forward(
        self, logits: Tensor, labels: Tensor, weight: Tensor | None = None, group: Tensor | None = None
    ) -> Tensor:
        """Return the mean over rows, ().

        Args:
            logits: (B, 1).
            labels: (B, 1), as in the data: 0 and 1, or numbers such as grades.
            weight: (B,), weight of each row; rows of weight 0 are compared with no other.
            group: (B,), equal for neighbouring rows of one group.

        Raises:
            ValueError: the batch has no groups.
        """
        if group is None:
            raise ValueError("the batch has no groups; set data.group.together=true")
        weights = torch.ones_like(logits[:, 0]) if weight is None else weight
        new = torch.ones_like(group, dtype=torch.bool)
        new[1:] = group[1:] != group[:-1]
        return self.compare(logits[:, 0].float(), labels[:, 0].float(), weights.float(), new.cumsum(0) - 1)

    @abstractmethod
    def compare(self, scores: Tensor, labels: Tensor, weight: Tensor, group: Tensor) -> Tensor:
        """Return the mean over rows of the loss of each row's group, ().

        Args:
            scores: logits (B,).
            labels: (B,), as in the data.
            weight: weight of each row, (B,); rows of weight 0 are compared with no other.
            group: number of each row's group, (B,); groups are 0, 1, ... in the order of the rows.
        """


def _sums(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return the sum of each group: (n,), (n,) -> (groups,)."""
    return values.new_zeros(groups).index_add(0, group, values)


def _by_rows(total: Tensor, parts: Tensor, weight: Tensor, group: Tensor) -> Tensor:
    """Return the mean over rows of total / parts of their groups, where parts > 0: (G,), (G,), (B,), (B,) -> ()."""
    means = total / torch.where(parts > 0, parts, 1)
    return (means * _sums(weight, group, len(total))).sum() / len(weight)


class Listwise(GroupLoss):
    """Softmax cross-entropy of each group: its labels, divided by their sum, against the softmax of its scores.

    Cao et al., Learning to Rank: From Pairwise Approach to Listwise Approach, 2007; Bruch et al., An Analysis of the
    Softmax Cross Entropy Loss for Learning-to-Rank with Binary Relevance, 2019,
    https://dl.acm.org/doi/10.1145/3341981.3344221. Labels below 0 count as 0; groups whose labels are all 0 add 0.

    Args:
        pointwise: share of the loss of single rows.
        exponential: divide 2^label - 1, the gains of NDCG, instead of labels.

    >>> scores, labels, group = torch.tensor([[2.0], [0.0]]), torch.tensor([[1.0], [0.0]]), torch.tensor([7, 7])
    >>> Listwise()(scores, labels, group=group)
    tensor(0.1269)
    """

    def __init__(self, *, pointwise: Share = 0.0, exponential: bool = False) -> None:
        super().__init__(pointwise=pointwise)
        self.exponential = exponential

    def compare(self, scores: Tensor, labels: Tensor, weight: Tensor, group: Tensor) -> Tensor:
        groups = len(scores)  # at least the number of groups
        known = weight > 0
        gains = torch.exp2(labels.clamp(max=MAX_GRADE)) - 1 if self.exponential else labels
        gains = gains.clamp(min=0) * weight
        masked = scores.masked_fill(~known, -torch.inf)
        most = scores.new_full((groups,), -torch.inf).scatter_reduce(0, group, masked.detach(), "amax")
        most = torch.where(torch.isfinite(most), most, 0)
        shifted = torch.where(known, scores - most[group], 0)
        total = _sums(torch.where(known, shifted.exp(), 0), group, groups)
        log_share = shifted - torch.where(total > 0, total, 1).log()[group]
        return _by_rows(-_sums(gains * log_share, group, groups), _sums(gains, group, groups), weight, group)


class Pairwise(GroupLoss):
    """Logistic loss over the pairs of rows of a group with different labels: ln(1 + exp(lower score's - higher's)).

    RankNet and LambdaRank: Burges, From RankNet to LambdaRank to LambdaMART: An Overview, 2010,
    https://www.microsoft.com/en-us/research/publication/from-ranknet-to-lambdarank-to-lambdamart-an-overview/. A pair's
    weight is the product of its rows' weights.

    Args:
        pointwise: share of the loss of single rows.
        ndcg: weight each pair by how much NDCG changes if its rows exchange their places in the ranking (LambdaRank);
            labels are grades, with gains 2^label - 1, and count as 0 below 0.
        others: largest number of rows that each row is compared with; in larger groups it is compared with a random
            sample of the others. Memory grows with B x others.

    >>> scores, labels, group = torch.tensor([[2.0], [0.0]]), torch.tensor([[1.0], [0.0]]), torch.tensor([7, 7])
    >>> Pairwise()(scores, labels, group=group)
    tensor(0.1269)
    """

    def __init__(self, *, pointwise: Share = 0.0, ndcg: bool = False, others: Count = 128) -> None:
        super().__init__(pointwise=pointwise)
        self.ndcg, self.others = ndcg, others

    def compare(self, scores: Tensor, labels: Tensor, weight: Tensor, group: Tensor) -> Tensor:
        first, second = self._pairs(group)
        above = (labels[first] > labels[second]) & (weight[first] > 0) & (weight[second] > 0)
        first, second = first[above], second[above]
        pair_weight = weight[first] * weight[second]
        if self.ndcg:
            # by how much the NDCG of their group changes if the rows of a pair exchange their places
            known = weight > 0
            gains = torch.where(known, torch.exp2(labels.clamp(0, MAX_GRADE)) - 1, 0)
            best = _sums(gains * _discounts(torch.where(known, labels, -torch.inf), group), group, len(scores))
            discounts = _discounts(torch.where(known, scores.detach(), -torch.inf), group)
            changes = (gains[first] - gains[second]).abs() * (discounts[first] - discounts[second]).abs()
            pair_weight = pair_weight * (changes / torch.where(best > 0, best, 1)[group[first]])
        losses = nn.functional.softplus(scores[second] - scores[first]) * pair_weight
        total, parts = (_sums(x, group[first], len(scores)) for x in (losses, pair_weight))
        return _by_rows(total, parts, weight, group)

    def _pairs(self, group: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places (P,) and (P,) of all ordered pairs of rows of a group, or of a sample of them."""
        sizes = torch.bincount(group)
        starts = sizes.cumsum(0) - sizes
        counts = (sizes - 1).clamp(max=self.others)[group]  # pairs of each row
        first = torch.repeat_interleave(torch.arange(len(group), device=group.device), counts)
        nth = torch.arange(len(first), device=group.device) - (counts.cumsum(0) - counts)[first]
        size, start = sizes[group[first]], starts[group[first]]
        # the i-th other row of a row is i + 1 places behind it, around the group; of large groups one of each stretch
        stretch = (size - 1) / counts[first]
        shift = torch.where(size - 1 > self.others, torch.rand(len(first), device=group.device), 0)
        step = 1 + ((nth + shift) * stretch).long().clamp(max=size - 2)
        return first, start + (first - start + step) % size


def _discounts(values: Tensor, group: Tensor) -> Tensor:
    """Return 1 / log2(1 + rank) of each row, (B,), with rank 1 for the largest value of its group."""
    order = values.argsort(descending=True, stable=True)
    order = order[group[order].argsort(stable=True)]
    sizes = torch.bincount(group)
    ranks = torch.empty_like(group)
    ranks[order] = torch.arange(len(group), device=group.device) - (sizes.cumsum(0) - sizes)[group[order]] + 1
    return 1 / torch.log2(1 + ranks.float())

"""One table of names: what each framework's name for a metric means.

A name is first normalised (``train/CrossEntropyLoss`` → ``train_cross_entropy_loss``), then looked up in ``EXACT``,
then matched against ``PATTERNS`` in order. The first match wins. A name without a match has no kind: it is still
read and plotted, but no detector uses it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

__all__ = ["EPOCH_NAMES", "STEP_NAMES", "Meaning", "is_ambient", "meaning_of", "plain"]

EVALUATION_WORDS = frozenset(
    ("val", "valid", "validation", "eval", "evaluation", "test", "dev", "heldout", "holdout", "tst", "vl", "vld", "va",
     "te")
)  # fmt: skip

# Whole normalised names. Values: kind, or kind with the direction in which a metric improves.
EXACT: Mapping[str, str] = MappingProxyType(
    {
        # karpathy's short logs: train and test loss of llm.c and modded-nanogpt
        "trl": "loss",
        "tr_l": "loss",
        "tr_a": "metric+",
        "vl_l": "eval_loss",
        "vl_a": "metric+",
        # CatBoost's own names for what it minimises
        "multi_class": "loss",
        "logloss": "loss",
        "tel": "eval_loss",
        "hella": "metric+",
        "hellaswag": "metric+",
        # gradients
        "norm": "grad_norm",
        "gnorm": "grad_norm",
        "grad": "grad_norm",
        "grad_norm": "grad_norm",
        "gradient_norm": "grad_norm",
        # schedules
        "lr": "lr",
        "learning_rate": "lr",
        # precision
        "scale": "loss_scale",
        "scaler": "loss_scale",
        "skipped": "skipped",
        # speed
        "time": "step_time",
        "time_train": "",  # Composer counts hours since the start.
        "dt": "step_time",
        "batch_time": "step_time",
        "iter_time": "step_time",
        "data": "data_time",
        "mfu": "throughput",
        "ups": "throughput",
        "wps": "throughput",
        "tps": "throughput",
        "fps": "throughput",
        "ppl": "perplexity",
        "ppls": "perplexity",
        "mem": "memory",
        "objective": "loss",
        "cost": "loss",
        "energy": "loss",
        "nll": "loss",
        "elbo": "metric+",
        "mll": "metric+",
        "lml": "metric+",
        "perceptual": "loss",
        "cyc": "loss",
        "cycle": "loss",
        "return": "reward",
        "score": "reward",
        "episode_reward": "reward",
        "ep_rew_mean": "reward",
    }
)

# Matched in order against the normalised name. "metric+" improves upward, "metric-" downward; "" means known but
# irrelevant.
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        # Names that contain the word of another kind come first.
        (
            r"(^|_)(every|freq|frequency|interval|period|patience|threshold|cutoff|schedule|scheduler|fn|function|batch_size"
            r"|warmup|warmup_steps|smoothing|init|(?<!_on_)target|clip_range|range|decay_steps|min_lr|max_lr|base_lr|end_lr|ids?|idx|indices)$",
            "",
        ),
        (r"(^|_)(return|exit)_(code|value|status|type|dict|tensors?)s?(_|$)|^target_", ""),
        (r"(loss|acc|accuracy|reward|error|hits?)_(num|count|n|cnt)$", ""),
        (r"^time_(train|val|total|batch|batch_in_epoch|epoch|token|sample|iteration|exp|elapsed)$", ""),
        # A delay in traffic, a network's packets, a trader's orders.
        (r"(^|_)(time|packet|stop|profit(_and)?)_loss$", ""),
        (r"(^|_)fp16_scale$", "loss_scale"),
        (
            r"(^|_)rewards?_(std|chosen|rejected|margins?)(_|$)|(^|_)(rewards?_(\w*_)?|rewards?|ep_(rew|ret)_?|std_ep_ret\w*_?)(std|ci\d*|sem|stderr)$"
            r"|^std_(of_)?(ep_)?(rew\w*|ret\w*)$|(^|_)frac_reward_",
            "",
        ),
        (r"(^|_)rewards?_accurac(y|ies)(_|$)", "metric+"),
        # How well a model predicts rewards, and how common they are in its data: nothing that an agent earns.
        (r"(^|_)rewards?_(prec(ision)?|recall|b?acc|f_?1|au(ro)?c)$", "metric+"),
        (r"(^|_)rewards?_rate$", ""),
        (r"(^|_)(throughput|device)_(hook_time|total_\w+|data_loading)$", ""),
        (
            r"^throughput_duration$|(^|_)timing_s_step$|(^|_)(s|sec|seconds)_(per_)?(it|iter|iteration|step|batch)$",
            "step_time",
        ),
        (r"^time_fps$|(^|_)tokens?_(train_)?per_sec(ond)?(_|$)", "throughput"),
        (r"^(l2|rms)_norm_grad(_|$)", "grad_norm"),
        (r"^(l2|rms)_norm_(param|params|weight|weights)(_|$)", "weight_norm"),
        (r"^(l2|rms)_norm_update(_|$)|(^|_)updates_norm(_|$)", "update_norm"),
        (r"^(l2|rms)_norm(_|$)", ""),
        (r"(^|_)(loss_?scale|grad_?scale|scale_?factor|amp_scale|scaler_scale|cur_scale)(r|$|_)", "loss_scale"),
        (r"(^|_)(loss_)?(weight|coef|coeff|lambda|alpha|beta)s?$", ""),
        (
            r"(^|_)(clip_?frac\w*|clip|cliprange|kl_coef|explained_variance|entropy_coef\w*|ent_coef\w*|entropy_bonus)$",
            "",
        ),
        (r"(^|_)(policy_|action_|mean_)?(?<!cross_)entropy(_loss|_mean|_avg)?$", "entropy"),
        (
            r"(^|_)(approx_|mean_|policy_|ref_|reverse_|forward_|old_approx_)?kl(_?(div|divergence|mean|avg|ref|policy|old|new))?$|(^|_)kld$",
            "kl",
        ),
        (
            r"(^|_)(value|vf|critic|baseline|qf?\d?|td)_(function_)?loss(es)?(_|\d|$)|(^|_)loss_(v|vf|critic|q\d?)$",
            "value_loss",
        ),
        (
            r"^[dg](_(a|b|ab|ba|real|fake|gan|l1|l2|adv|total|cycle|vgg|feat|rec))+$|^(cycle|idt|identity|rec)_[ab]$",
            "loss",
        ),
        (r"(^|_)(best|min(?!_[af]de)|lowest|highest|patience|total_flos|early_stop|counter)(_|$)", ""),
        (r"(^|_)(nan|nans)(_|$)", "nan_count"),
        (r"(^|_)(inf|infs)(_|$)", "inf_count"),
        (r"(^|_)(skip(ped|s)?|overflows?)(_|$)", "skipped"),
        (r"(^|_)total_(tokens|training|samples|steps|examples)(_|$)", ""),
        (r"^num(ber_of)?_zeros$|^zeros$|(^|_)(train|total|cumulative)_time$", ""),
        (r"(^|_)(param(eter)?|weight|data)_?hash(es)?(_|$)", "param_hash"),
        (r"(^|_)(avg_)?reader_cost(_|$)", "data_time"),
        (r"(^|_)(avg_)?batch_cost(_|$)|(^|_)step_timing(_|$)", "step_time"),
        (r"(^|_)ips$", "throughput"),
        (r"(^|_)critic_(score|rewards?)(_|$)", "reward"),
        (r"(^|_)(data|dataload(er|ing)?|load(er|ing)?|fetch)_?(time|wait|latency|ms|s|sec|seconds)(_|$)", "data_time"),
        (
            r"(^|_)(tokens?|samples?|steps?|examples?|images?|words?|iters?|iterations?|batches|it|updates)"
            r"_(per|p|/)?_?(second|sec|s)(_|$)",
            "throughput",
        ),
        (
            r"(^|_)(throughput|tok_s|tok_sec|tokens_sec|tgs|samplespersec|samples_per_sec|tflops?|mfu|flops|ups|wps)(_|$)",
            "throughput",
        ),
        (
            r"(^|_)(step|iter|iteration|batch|elapsed|train|forward|backward|optimizer|it)_?"
            r"(avg|time|latency|ms|duration)(_|$)|ms_(per_)?(batch|step|iter)|(^|_)time_(per|ms|s|sec)(_|$)"
            r"|(^|_)time_sec_iter(_|$)",
            "step_time",
        ),
        (r"(^|_)(mem|memory|vram|alloc|allocated|reserved|memallocated)(_|$)", "memory"),
        (r"(^|_)(update|delta)_?(to_weight_)?(norm|ratio|rms)(_|$)", "update_norm"),
        (r"(^|_)weight_gain(_|$)", "weight_gain"),
        (r"(^|_)(psi|ks_statistic|js_divergence)(_|$)", "distribution"),
        (
            r"(^|_)(param(eter)?s?|weights?|model)_?(l2_|l_2_|2_0_)?(norm|rms)(_|$)|(^|_)norm_(of_)?weights?$",
            "weight_norm",
        ),
        (
            r"(^|_)(g|grad|grads|gradient|gradients)_?(l2_|l_2_|total_|2_0_|global_|inf_)*(norm|norms|rms)(_|$)",
            "grad_norm",
        ),
        (r"(^|_)(global|total)_norm$|(^|_)norm_(of_)?(grad|grads|gradient|gradients)$", "grad_norm"),
        (
            r"(^|_)(activation|activations|act_mean|act_std|hidden_norm|saturat\w*|dead_(frac|fraction|share|units))(_|$)",
            "activation",
        ),
        (r"(^|_)(lr|learning_rate)(_|\d|$)", "lr"),
        # The number of used entries of a codebook: the more the better.
        (
            r"(^|_)(perplexity|ppl)_(pct|percent|percentage|share|ratio|usage)$|(^|_)(code(book)?s?|vq|quanti[sz]er)_(perplexity|ppl)(_|$)",
            "metric+",
        ),
        (r"(^|_)(perplexity|ppl|perp)(_|$)", "perplexity"),
        (
            r"(^|_)loss(es)?(_|\d|$)|loss$|(^|_)(nll|cross_entropy|xent|ce|criterion|bpb|bpc|bits_per_(byte|char|token|dim)|objective)$",
            "loss",
        ),
        (r"(^|_)(marginal_)?log_(marginal_)?likelihood$", "metric+"),
        (r"(^|_)equivariance(_|$)", "loss"),
        # The parts of a detector's loss as YOLO prints them; BasicSR's "l_pix", "l_g_gan".
        (r"^(train_|val_)?(box|obj|cls|dfl|giou|ciou)(_om|_oo)?$|^l_(?!rate)[a-z]\w*$", "loss"),
        (r"(^|_)(verlust|perda|perdida|perte)(_|$)|(^|_)recon(struction)?$", "loss"),
        (r"(^|_)(reward|rewards|return|returns|rew|ep_ret)(_|$)", "reward"),
        (r"(^|_)(avg|average|mean|episode|total|running|game)_?\d*_scores?$", "reward"),
        (
            r"(^|_)(acc\w?|accuracy|accuracies|acc_?\d|top_?[15]|f1|f1_score|f_?score|precision|recall|auc|auroc|roc_auc|map|m_ap\w*|ap|ap_?(50|75)|a_?ps|a_?pm|a_?pl|prec(_?[15])?"
            r"|map_?50\w*|iou|miou|m_io_u|(sacre)?bleu\w*|rouge\w*|meteor|exact_match|em|hella\w*|hellaswag|psnr|ssim|dice|dsc|r2"
            r"|r_2|r2_score|correct|success_rate|mcc|kappa|sensitivity|specificity|cider\w*|spice|chrf\w*|bert_?score|inception_score|elo|solved_rate|pass_?\d+|spearman\w*|pearson\w*|ndcg|hits?(_?(rate|ratio|at))?(_?\d+)?|mrr|fitness|srcc|plcc|krcc|srocc|win_?rate)(_|$)|_scores?$",
            "metric+",
        ),
        (
            r"(^|_)(error|err|error_rate|wer|cer|ter|mae|mse|rmse|nrmse|mape|smape|fid|kid|fvd|lpips|ece|eer|epe|fpr|fnr|l1|l2|rmsd|exploitability|nash_?conv|regret|miss_rate)(_|\d|$)|(^|_)(min_?|brier_)?[af][do]e_?\d*(_|$)",
            "metric-",
        ),
    )
)

STEP_NAMES: tuple[str, ...] = (
    "global_step",
    "trainer_global_step",
    "train_global_step",
    "step",
    "steps",
    "current_steps",
    "current_step",
    "iteration",
    "iterations",
    "iter",
    "iters",
    "itr",
    "num_updates",
    "train_num_updates",
    "update",
    "updates",
    "train_step",
    "train_steps",
    "optimizer_step",
    "global_iter",
    "n_iter",
    "it",
    "num_steps",
    "timestep",
    "timesteps",
    "total_timesteps",
    "time_total_timesteps",
    "batch",
    "batch_idx",
    "batch_index",
    "batch_id",
    "idx",
    "minibatch",
    "micro_step",
    "tokens_seen",
    "consumed_samples",
    "consumed_tokens",
    "num_tokens",
    "samples_seen",
    "episode",
    "episodes",
)
EPOCH_NAMES: tuple[str, ...] = ("epoch", "epochs", "train_epoch", "current_epoch", "ep", "epoch_num", "round")

# Present in every kind of row, so their presence does not mean that a row should contain a metric.
_AMBIENT = re.compile(
    r"^_?(timestamp|time_stamp|wall_?time|date|datetime|percentage|elapsed_time|remaining_time|runtime|eta|wall"
    r"|train_wall|total_steps|max_steps|mode|split|phase|rank|run|step_type|total|progress)$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS = re.compile(r"[^a-z0-9]+")
_REPLICA = re.compile(
    r"(?:^|[/_.\-:\s])(?:rank|replica|gpu|device|worker|dp_rank)[_\-\s=:]?(\d{1,6})(?=$|[/_.\-:\s])", re.I
)
_LAYERED = re.compile(
    r"^(?P<head>(?:[\w.\- ]*?/)?(?:grad(?:ient)?s?[\w.]*?norms?|grad_[\d.]+_norm|gradients?|(?:weight|param)s?_norms?"
    r"|weight_gain|(?:l2|rms)_norm/(?:grad|param|update)|update_(?:norm|ratio)s?|activations?(?:_\w+)?|nan_count|inf_count|dead_(?:frac|fraction|share)"
    r"|saturat(?:ion|ed)(?:_\w+)?))[/:](?P<layer>[\w.\-/]+)$",
    re.I,
)
# Only distances between features: the KL of reinforcement learning is between two policies.
_DISTANCE = re.compile(
    r"^(?:(?:drift|skew|serving|data|features?)[/_.])?(?P<statistic>psi|ks|kl|js)[/:](?P<feature>[\w.\- ]+)$", re.I
)
_NOT_FEATURES = frozenset(
    ("mean", "avg", "max", "min", "std", "sum", "total", "loss", "ref", "coef", "coeff", "beta", "penalty", "target",
     "policy", "reward", "value", "token", "tokens", "sequence", "step", "div", "divergence")
)  # fmt: skip
# What a hyperparameter search prints for each of its trials: Hyperopt's "job returned loss: 0.5".
_OF_TRIALS = re.compile(r"^job_returned_|^trial_(loss|score|objective)$|^trial_s_")
_NOT_LAYERS = frozenset(
    ("total", "global", "all", "mean", "max", "min", "train", "norm", "step", "clipped", "unclipped")
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a name: its kind, its layer and replica, and what else it says."""

    kind: str | None = None
    layer: str | None = None
    replica: int | None = None
    base: str | None = None
    """The name without the replica, so that the same series of all ranks has one name."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=65536)
def plain(name: str) -> str:
    """Normalise a metric's name: lower-case words joined by underscores."""
    text = _CAMEL.sub("_", name[:512].replace("@", "_"))
    return _SEPARATORS.sub("_", text.lower()).strip("_")


def is_ambient(name: str) -> bool:
    """Return whether the field only says when or where, and is not a metric."""
    word = plain(name)
    return word in STEP_NAMES or word in EPOCH_NAMES or bool(_AMBIENT.match(word))


@lru_cache(maxsize=65536)
def meaning_of(name: str) -> Meaning:
    """Look up a metric's name in the table."""
    distance = _distance_of(name[:512])
    if distance is not None:
        return distance
    replica: int | None = None
    rank = _REPLICA.search(name[:512])
    text = name[:512]
    if rank:
        replica = int(rank.group(1))
        text = (text[: rank.start()] + "_" + text[rank.end() :]).strip("/_ .-:") or text
    base = text if rank else None
    layer: str | None = None
    layered = _LAYERED.match(text)
    if layered and layered.group("layer").lower() not in _NOT_LAYERS:
        layer = layered.group("layer")
        text = layered.group("head")
        if plain(text).endswith(("gradient", "gradients")):
            text = "grad_norm"
    kind, metadata = _kind_of(plain(text))
    if layer is not None and kind is None:
        layer = None
    return Meaning(kind, layer, replica, base, MappingProxyType(metadata))


def _distance_of(name: str) -> Meaning | None:
    """Return a distance between two distributions, per feature: ``psi/age``."""
    match = _DISTANCE.match(name)
    if match is None or match["feature"].lower() in _NOT_FEATURES:
        return None
    metadata = {"statistic": match["statistic"].lower(), "feature": match["feature"]}
    return Meaning("distribution", metadata=MappingProxyType(metadata))


def _kind_of(word: str) -> tuple[str | None, dict[str, Any]]:
    words = [part for part in word.split("_") if part]
    evaluation = any(part in EVALUATION_WORDS for part in words)
    metadata: dict[str, Any] = {"split": "eval"} if evaluation else {}
    if _OF_TRIALS.search(word):
        metadata["trials"] = True
    stripped = "_".join(part for part in words if part not in EVALUATION_WORDS and part not in ("train", "training"))
    kind = EXACT[word] if word in EXACT else EXACT.get(stripped)
    if kind is None:
        kind = next((kind for pattern, kind in PATTERNS if pattern.search(word)), None)
    if not kind or is_ambient(word):
        return None, metadata
    if kind in ("metric+", "metric-"):
        metadata["higher_is_better"] = kind == "metric+"
        return "metric", metadata
    if kind == "reward":
        metadata["higher_is_better"] = True
        if evaluation and words[-1] in ("score", "scores"):
            return "metric", metadata  # A classifier's score on held-out data is not an agent's return.
    if kind == "entropy" and words[-1] == "loss":
        metadata["negated"] = True  # The entropy is minimised with its sign reversed.
    if kind == "loss" and evaluation:
        return "eval_loss", metadata
    if evaluation and kind not in ("eval_loss", "perplexity", "reward"):
        return None, metadata
    if kind == "eval_loss":
        metadata["split"] = "eval"
    return kind, metadata

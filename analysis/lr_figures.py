"""Pictures of isoFLOP profiles, of a specification curve, and of losses against learning rates."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis.answer_isoflop import Group
from analysis.answer_lr import FEATURES, Curve, LrAnswer
from analysis.draw import FAINT, INK, STYLE, WIDTH, canvas, shown
from analysis.multiverse import Universe
from analysis.pictures import Picture
from analysis.units import si

COLORS = sns.color_palette("colorblind").as_hex()
MARKS = {"parabola": ("o", COLORS[0]), "akima": ("s", COLORS[1]), "surface": ("D", COLORS[2]), "points": ("o", INK)}
MOST_GROUPS, MOST_NAMED = 6, 8


def isoflop_pictures(groups: Sequence[Group]) -> list[Picture]:
    """Profiles and best N of each group, of the first few where there are many."""
    pictures = []
    some = f" The first {MOST_GROUPS} of {len(groups)} groups are drawn." if len(groups) > MOST_GROUPS else ""
    for i, group in enumerate(groups[:MOST_GROUPS]):
        name = ", ".join(group.name.values())
        where = f"{name}. " if name else ""
        caption = f"{where}Dots: runs; lines: parabolas; marks: optima by each method.{some}"
        if "points" not in group.optima:
            pictures.append(
                Picture(f"isoflop_profiles_{i}", f"IsoFLOP profiles {name}", caption, profiles_figure(group))
            )
        caption = f"{where}Marks: best N of each budget; lines: the power laws through those inside their grid.{some}"
        pictures.append(Picture(f"isoflop_optimal_{i}", f"Best N {name}", caption, optimal_figure(group)))
    return pictures


def _of(group: Group) -> str:
    return f": {shown(', '.join(group.name.values()))}" if group.name else ""


def profiles_figure(group: Group) -> Figure:
    """Loss against N, a colour per budget."""
    colors = sns.color_palette("viridis", len(group.profiles))
    with canvas() as (figure, axes):
        for i, (profile, color) in enumerate(zip(group.profiles, colors, strict=True)):
            n, loss = np.exp(profile.log_n), np.exp(profile.log_loss)
            axes.plot(n, loss, "o", ms=3, color=color)
            fine = np.linspace(profile.log_n[0], profile.log_n[-1], 100)
            fitted = np.polyval(np.polyfit(profile.log_n - fine[0], loss, min(2, len(n) - 1)), fine - fine[0])
            axes.plot(np.exp(fine), fitted, color=color, lw=0.9)
            for method, (mark, _) in MARKS.items():
                best = group.optima.get(method, [None] * len(group.profiles))[i]
                if best and fine[0] <= best.log_n <= fine[-1]:
                    axes.plot(np.exp(best.log_n), best.loss, mark, ms=5, mfc="none", color=INK, mew=0.8)
        low, high = group.profiles[0].flops, group.profiles[-1].flops
        axes.set(xscale="log", xlabel="parameters N", ylabel="loss (nats)")
        axes.set_title(f"IsoFLOP profiles, {low:.2g} to {high:.2g} FLOPs{_of(group)}")
        return figure


def optimal_figure(group: Group) -> Figure:
    """Best N against the budget by each method."""
    flops = np.array([profile.flops for profile in group.profiles])
    with canvas() as (figure, axes):
        for method, optima in group.optima.items():
            mark, color = MARKS[method]
            good = [(c, o) for c, o in zip(flops, optima, strict=True) if o and o.interior]
            axes.plot([c for c, _ in good], [np.exp(o.log_n) for _, o in good], mark, ms=4.5, color=color, alpha=0.8)
            line = group.lines.get(method, (None, None))[0]
            slope = line.slope if line else group.surface.values["a"] if group.surface else np.nan
            if line:
                axes.plot(flops, [line.at(c)[0] for c in flops], color=color, lw=1)
            axes.plot([], [], mark, color=color, ls="-", ms=4.5, label=f"{method}: N ∝ C^{slope:.3f}")
        axes.set(xscale="log", yscale="log", xlabel="training FLOPs C", ylabel="best N")
        axes.set_title(f"Compute-optimal N{_of(group)}")
        axes.legend(frameon=False, fontsize=8)
        return figure


def multiverse_picture(axes_of: Mapping[str, Sequence[str]], found: Sequence[Universe], name: str) -> Picture:
    """The specification curve of one quantity: estimates in order, and the choices behind each below it."""
    known = sorted((u for u in found if name in u.values), key=lambda u: u.values[name])
    options = [(axis, option) for axis, some in axes_of.items() for option in some]
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH * 1.3, 3 + 0.17 * len(options)), layout="constrained")
        top, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 0.2 * len(options)])
        for i, universe in enumerate(known):
            color = COLORS[1] if universe is found[0] else COLORS[0]
            if name in universe.ci:
                top.plot([i, i], universe.ci[name], color=FAINT, lw=1, zorder=1)
            top.plot(
                i,
                universe.values[name],
                "D" if universe is found[0] else "o",
                ms=5 if universe is found[0] else 2.5,
                color=color,
            )
            for row, (axis, option) in enumerate(options):
                if universe.choices[axis] == option:
                    below.plot(i, row, "|", ms=4, color=INK, mew=0.9)
        values = [u.values[name] for u in known]
        pad = max(np.ptp(values), 1e-9) * 0.6
        top.set(ylabel=name, ylim=(min(values) - pad, max(values) + pad))
        top.set_title(f"{name} under {len(known)} specifications (diamond: reference)")
        below.set_yticks(range(len(options)), [shown(f"{axis}: {option}", 30) for axis, option in options], fontsize=7)
        below.set(ylim=(len(options) - 0.5, -0.5), xlabel="specification, in order of the estimate")
        below.grid(visible=False)
    caption = "Bars: 95 % bootstrap intervals. Below: which choices stand behind each estimate."
    return Picture(f"multiverse_{name}", f"Specification curve of {name}", caption, figure)


def lr_pictures(answer: LrAnswer) -> list[Picture]:
    """Loss against learning rate, and the law where there is one."""
    caption = "Dots: runs (× at the top: diverged); line: its curvature; diamond and bar: optimum, 95 % interval."
    figure = curves_figure(answer.curves, answer.law.exponents if answer.law else FEATURES)
    pictures = [Picture("lr_curves", "Loss against learning rate", caption, figure)]
    if answer.law:
        name = next(iter(answer.law.exponents))
        caption = "Dots: optima with 95 % intervals; line: the power law through them."
        pictures.append(Picture("lr_law", f"Best learning rate against {name}", caption, law_figure(answer, name)))
    return pictures


def curves_figure(curves: Sequence[Curve], told_by: Collection[str]) -> Figure:
    """A colour per configuration, in order; `told_by`: the features that tell them apart."""
    colors = sns.color_palette("viridis", len(curves)) if len(curves) > 1 else [COLORS[0]]
    with canvas() as (figure, axes):
        stable = np.concatenate([curve.stable["loss"].to_numpy() for curve in curves])
        top = float(np.max(stable)) if len(stable) else 1.0
        for curve, color in zip(curves, colors, strict=True):
            lrs, losses = curve.stable["lr"].to_numpy(), curve.stable["loss"].to_numpy()
            axes.plot(lrs, losses, "o", ms=3, color=color, alpha=0.7)
            gone = curve.rows["lr"].to_numpy()[~np.isin(curve.rows["lr"].to_numpy(), lrs)]
            axes.plot(gone, np.full(len(gone), top), "x", ms=5, color=color)
            best = curve.best
            if best and best.curvature:
                near = np.log(lrs[np.abs(np.log(lrs / best.lr)) < 2.5]) if len(lrs) else np.array([])
                fine = np.linspace(near.min(), near.max(), 80) if len(near) else np.array([])
                line = best.loss + best.curvature / 2 * (fine - np.log(best.lr)) ** 2
                axes.plot(np.exp(fine), line, color=color, lw=0.9)
                axes.plot(best.lr, best.loss, "D", ms=5, color=color, mec="white")
                if best.low and best.high:
                    axes.plot([best.low, best.high], [best.loss] * 2, color=color, lw=2.5, alpha=0.5)
            label = ", ".join(
                [*curve.name.values(), *(f"{k} {si(v)}" for k, v in curve.features.items() if k in told_by)]
            )
            axes.plot([], [], "o", ms=3, color=color, label=shown(label))
        if 1 < len(curves) <= MOST_NAMED:
            axes.legend(frameon=False, fontsize=7)
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss (nats)", title="Loss against learning rate")
        return figure


def law_figure(answer: LrAnswer, name: str) -> Figure:
    """Optima against one feature; the line moves along it with the other features as they are."""
    known = [curve for curve in answer.curves if curve.best and curve.best.interior]
    with canvas() as (figure, axes):
        for curve in known:
            best = curve.best
            if best is None or answer.law is None:
                continue
            axes.plot(curve.features[name], best.lr, "o", color=COLORS[0])
            if best.low and best.high:
                axes.plot([curve.features[name]] * 2, [best.low, best.high], color=COLORS[0], lw=1)
        asked = _ask(axes, answer, name)
        if answer.law:
            known = sorted(known, key=lambda curve: curve.features[name])
            axes.plot([c.features[name] for c in known], [answer.law.at(c.features) for c in known], color=INK, lw=1)
            axes.set_title(f"Best learning rate ∝ {name}^{answer.law.exponents[name]:.3f}")
        axes.set(xscale="log", yscale="log", xlabel=name, ylabel="best learning rate")
        sizes = sorted({curve.features[name] for curve in known} | asked)
        if len(sizes) <= MOST_NAMED:
            axes.set_xticks(sizes, [si(size) for size in sizes])
            axes.xaxis.set_minor_locator(NullLocator())
        return figure


def _ask(axes: Axes, answer: LrAnswer, name: str) -> set[float]:
    """What the law says of a size it has not seen, and what runs of that size say; the size, if one was asked for."""
    if not (told := answer.predicted):
        return set()
    x = told["at"][name]
    axes.plot(x, told["lr"], "D", color=INK, mfc="none", label="the law, unseen size")
    if told["low"]:
        axes.plot([x, x], [told["low"], told["high"]], color=INK, lw=1, ls=":")
    if answer.check and answer.check.lr and answer.check.interior:
        axes.plot(x, answer.check.lr, "*", ms=9, color=COLORS[1], label="measured there")
    axes.legend(frameon=False, fontsize=8)
    return {x}

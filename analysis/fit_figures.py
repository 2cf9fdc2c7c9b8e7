"""Pictures of a scaling fit: the surface with its runs, residuals, profiles of the parameters, extrapolation."""

import numpy as np
import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.allocate import allocate
from analysis.answer_fit import Answer
from analysis.draw import FAINT, INK, STYLE, WIDTH, canvas
from analysis.fit import predict
from analysis.huber import Floats
from analysis.pictures import Picture
from analysis.units import si

GRID = 120
WIDE = 20.0  # largest to smallest value from which an axis is logarithmic
MANY = 400  # dots beyond which they are drawn smaller and paler
TITLES = {"n": "parameters N", "d": "training tokens D", "c": "training FLOPs C"}
BLUE, ORANGE = sns.color_palette("colorblind").as_hex()[:2]


def fit_pictures(answer: Answer) -> list[Picture]:
    """What there is to draw of an answer."""
    pictures = [
        Picture("fit_residuals", "Residuals", "Dots: runs; a trend is misfit, not noise.", residual_figure(answer))
    ]
    if answer.fit.spec.form in ("nd", "ndu"):
        caption = "Lines: equal fitted loss of fresh data. Dashed: best N for each budget. Dots: runs."
        pictures.insert(0, Picture("fit_surface", "Fitted loss over N and D", caption, surface_figure(answer)))
    else:
        pictures.insert(0, Picture("fit_curve", "Fitted loss", "Line: fit; dots: runs.", curve_figure(answer)))
    if answer.profiles:
        caption = "Rise of the deviance; below the dashed line is the 95 % interval. Flat: not identified."
        pictures.append(Picture("fit_profiles", "Profile likelihood", caption, profile_figure(answer)))
    if answer.extrapolation:
        caption = "A dot: a fit to the runs up to there and its error beyond; number: share that its intervals cover."
        pictures.append(Picture("fit_extrapolation", "Rolling extrapolation", caption, extrapolation_figure(answer)))
    return pictures


def _dots(axes: Axes, x: Floats, y: Floats, count: int) -> None:
    size, alpha = (8, 0.35) if count > MANY else (18, 0.75)
    axes.scatter(
        x, y, s=size, alpha=alpha, color=BLUE, edgecolors="white", linewidths=0.4, zorder=3, rasterized=count > 2000
    )


def surface_figure(answer: Answer) -> Figure:
    """Contours of the fitted loss over log N and log D, the runs, the compute-optimal line."""
    logs, values = answer.ladder.logs(), answer.fit.values
    axis = {name: np.linspace(logs[name].min() - 0.3, logs[name].max() + 0.3, GRID) for name in "nd"}
    n, d = np.meshgrid(axis["n"], axis["d"])
    base = {name: values[name] for name in ("E", "A", "B", "alpha", "beta")}
    loss = predict("nd", base, {"n": n.ravel(), "d": d.ravel()}).reshape(n.shape)
    with canvas() as (figure, axes):
        low, high = np.quantile(loss, [0.0, 0.97])
        lines = axes.contour(
            np.exp(n), np.exp(d), loss, levels=np.linspace(low, high, 12), colors=FAINT, linewidths=0.8
        )
        axes.clabel(lines, fontsize=7, fmt="%.2f")
        _dots(axes, np.exp(logs["n"]), np.exp(logs["d"]), len(answer.ladder.loss))
        budgets = np.geomspace(np.exp(logs["n"] + logs["d"]).min() / 10, np.exp(logs["n"] + logs["d"]).max() * 10, 50)
        best = [allocate(base, budget, 1.0) for budget in budgets]
        axes.plot([b.n for b in best], [b.d for b in best], "--", color=INK, lw=1.2)
        axes.set(xscale="log", yscale="log", xlabel=TITLES["n"], ylabel=TITLES["d"], title="Fitted loss over N and D")
        axes.set(xlim=np.exp(axis["n"][[0, -1]]), ylim=np.exp(axis["d"][[0, -1]]))
        return figure


def curve_figure(answer: Answer) -> Figure:
    """Loss against the one variable of the fit."""
    name = answer.fit.spec.form
    x = answer.ladder.logs()[name]
    line = np.linspace(x.min(), x.max() + 1, GRID)
    with canvas() as (figure, axes):
        _dots(axes, np.exp(x), answer.ladder.loss, len(x))
        axes.plot(np.exp(line), predict(name, answer.fit.values, {name: line}), color=INK, lw=1.2)
        axes.set(xscale="log", yscale="log", xlabel=TITLES[name], ylabel="loss (nats)", title="Fitted loss")
        return figure


def residual_figure(answer: Answer) -> Figure:
    """Predicted minus observed, in per cent, against compute."""
    logs, form = answer.ladder.logs(), answer.fit.spec.form
    key = "c" if "c" in logs else form[0]
    with canvas() as (figure, axes):
        axes.axhline(0, color=INK, lw=0.8)
        _dots(axes, np.exp(logs[key]), 100 * np.expm1(answer.fit.residuals), len(answer.ladder.loss))
        axes.set(xscale="log", xlabel=TITLES[key], ylabel="predicted − observed loss (%)", title="Residuals")
        return figure


def profile_figure(answer: Answer) -> Figure:
    """One small panel per parameter: deviance against its value."""
    found = list(answer.profiles.values())
    rows = (len(found) + 1) // 2
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.6 + 1.7 * rows), layout="constrained")
        panels = figure.subplots(rows, 2, squeeze=False).ravel()
        for axes, profile in zip(panels, found, strict=False):
            value, deviance = np.array(profile.points).T
            axes.plot(value, deviance, "o-", color=BLUE, ms=2.5, lw=1)
            axes.axhline(3.84, color=INK, lw=0.8, ls="--")
            flag = "" if answer.identified.get(profile.name, True) else ": not identified"
            near = value[deviance <= 8]
            axes.set(ylim=(-0.2, 8), ylabel="deviance", xlim=(near.min() * 0.97, near.max() * 1.03))
            if near.max() > WIDE * near.min():
                axes.set_xscale("log")
            else:
                axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.set_title(f"{profile.name}{flag}", color=INK if not flag else ORANGE)
        for axes in panels[len(found) :]:
            axes.set_visible(False)
        return figure


def extrapolation_figure(answer: Answer) -> Figure:
    """Mean absolute error and coverage against where the fit was cut."""
    cuts = answer.extrapolation
    x = [cut["cut_flops"] for cut in cuts]
    with canvas() as (figure, axes):
        axes.plot(x, [cut["mean_abs_error_pct"] for cut in cuts], "o-", color=BLUE, label="mean |error| (%)")
        axes.plot(x, [abs(cut["worst_error_pct"]) for cut in cuts], "s--", color=ORANGE, label="worst |error| (%)")
        for cut in cuts:
            place = (cut["cut_flops"], cut["mean_abs_error_pct"])
            axes.annotate(f"{cut['coverage']:.0%}", place, (0, 5), textcoords="offset points", ha="center", fontsize=7)
        axes.set(xscale="log", xlabel=f"fitted up to (largest: {si(max(x))}FLOPs)", title="Rolling extrapolation")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, title="numbers: coverage of 95 % intervals", title_fontsize=7.5, fontsize=8)
        return figure

"""From a recipe to a problem: data, network and method built and checked against one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from selfsame import methods, nets
from selfsame.config.presets import preset
from selfsame.config.recipe import NetPart, Recipe, to_toml
from selfsame.data import DATASETS, Federation, load
from selfsame.engine.batches import steps_a_round
from selfsame.engine.enrolling import ENROLLED
from selfsame.engine.groups import initially_present
from selfsame.engine.joint import check_split, within_budget
from selfsame.engine.machine import choose_machine
from selfsame.engine.model import Model
from selfsame.engine.plan import cohort_size
from selfsame.engine.polls import check_polls
from selfsame.engine.problem import Problem
from selfsame.engine.ranks.group import ALONE, Ranks
from selfsame.engine.ranks.shards import check_shards
from selfsame.engine.starting import KEPT, check_drawn, keep_start, load_kept, load_weights
from selfsame.engine.sums import check_sums, with_sums
from selfsame.engine.weight_files import read_weights
from selfsame.errors import SelfsameError
from selfsame.methods import LocalLoss
from selfsame.nets.fast import Load
from selfsame.nets.learned import Learned, choose_learned
from selfsame.nets.tied import fill
from selfsame.streams import Stream


def resolve(recipe: Recipe) -> Recipe:
    """The recipe with the data set's own network filled in, so that it says everything.

    Where only sums are released, these are over fixed groups, whatever the recipe says of sampling.
    """
    if not recipe.data.name:
        raise SelfsameError(f"data.name: name a data set; the data sets are: {', '.join(DATASETS)}")
    if recipe.data.name not in DATASETS:
        raise SelfsameError(f"unknown data set {recipe.data.name!r}; the data sets are: {', '.join(DATASETS)}")
    data = DATASETS[recipe.data.name]
    net = recipe.net
    own = net.name in ("", data.net)
    options = {
        **{key: value for key, value in (data.net_options if own else {}).items() if key != "rate"},
        **rate_option(net.name or data.net, {**data.options, **recipe.data.options}),
        **net.options,
    }
    options = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
    width = net.width or nets.own_width(net.name) or data.width
    cohort = replace(recipe.cohort, sampling="groups") if recipe.sums.summed else recipe.cohort
    if net.started and not net.vectors and methods.method_class(recipe.method.name).enrols:
        net = replace(net, vectors="drawn" if recipe.run.shard_tables else ENROLLED)
    return replace(
        recipe,
        cohort=cohort,
        net=replace(net, name=net.name or data.net, options=options, width=width),
    )


def rate_option(name: str, data_options: Mapping[str, Any]) -> dict[str, Any]:
    """The rate of the data's recordings, for a network that asks for it and expects another."""
    expected, rate = nets.own_rate(name), data_options.get("rate", 0)
    return {"rate": rate} if expected and rate and rate != expected else {}


def _with_features(recipe: Recipe, federation: Federation) -> Recipe:
    """The size of the vocabulary stands in the data file; a network that wants it gets it from there."""
    features = getattr(federation.source, "features", 0)
    if not features or recipe.net.name != "embedding-bag" or recipe.net.options.get("features"):
        return recipe
    return replace(recipe, net=replace(recipe.net, options={**recipe.net.options, "features": features}))


def _said(recipe: Recipe, method: LocalLoss) -> dict[str, Any]:
    """The method's options with those that it has fitted to the federation, so that the recipe says everything."""
    given = methods.make(recipe.method.name, recipe.method.options)
    found = {part.name: getattr(method, part.name) for part in fields(method)}
    return {**recipe.method.options, **{name: x for name, x in found.items() if x != getattr(given, name)}}


def _begun(
    recipe: Recipe, shape: tuple[int, ...], width: int, ranks: Ranks, folder: Path | None
) -> tuple[Recipe, nn.Module]:
    """The network to begin with, and the recipe with the digest of the file that it comes from.

    Rank 0 alone reads a file; the others are sent what it holds.
    """
    part = recipe.net
    given = {"started": part.started, "whitened": bool(part.whitened), **part.options}
    net = nets.build(part.name, shape, width, seed=recipe.run.seed, **given)
    if not part.started and not part.anchored:
        return recipe, net
    kept = folder / KEPT if folder is not None else None
    if ranks.first and kept is not None and kept.is_file():
        load_kept(net, kept)
    elif part.whitened:
        raise SelfsameError("net.whitened: a network is whitened when training has ended; see `selfsame whiten --help`")
    elif ranks.first and part.start:  # without it the numbers come later: to a device with every request
        weights = read_weights(part.start)
        load_weights(net, part, weights)
        part = replace(part, digest=weights.digest)
    if ranks.active:
        part = replace(part, digest=ranks.hear(part.digest))
        first = {name: value.detach().to(choose_machine(recipe.run).device) for name, value in net.named_parameters()}
        ranks.broadcast(first)
        fill(net, first)
    return replace(recipe, net=part), net


def as_seen(name: str, federation: Federation) -> Federation:
    """The data as the network of this name takes it: standardised, or at full scale."""
    return federation.full_scale() if nets.takes_full_scale(name) else federation


def _check_vectors(recipe: Recipe, method: LocalLoss) -> None:
    """Refuse to enrol where there is nothing to write it into."""
    if recipe.net.vectors != ENROLLED:
        return
    if not method.enrols:
        raise SelfsameError(f"net.vectors: {method.name} keeps no vector of a person that could begin as {ENROLLED}")
    if recipe.run.shard_tables:
        raise SelfsameError('net.vectors: with run.shard_tables no process has all of them; use "drawn"')


def prepare(
    recipe: Recipe,
    federation: Federation | None = None,
    ranks: Ranks = ALONE,
    expected: int | None = None,
    folder: Path | None = None,
) -> Problem:
    """Load the data, build the network and the method, check that they fit together.

    `expected`: how many of the federation's clients are sure to be there, for what a method fits to their number.
    `folder`: that of a run to go on with, which keeps the network that it began with.
    """
    recipe = resolve(recipe)
    method = methods.make(recipe.method.name, recipe.method.options)
    check_shards(method, recipe.run.shard_tables)
    check_sums(recipe, method)
    ranks.take_device(recipe.run)
    if federation is None:
        with ranks.in_turn():
            federation = load(recipe.data.name, recipe.data.path or None, **recipe.data.options)
    ranks.same("has data or a recipe", to_toml(recipe), federation.count_N, federation.class_of_N)
    recipe, federation = _with_features(recipe, federation), as_seen(recipe.net.name, federation)
    width = method.width(recipe.net.width)
    world = methods.World(federation.clients, federation.classes, width, federation.class_of_N)
    method = fitted_to(world, method, recipe, expected)
    method.check(world)
    check_polls(recipe, method, world)
    _check_vectors(recipe, method)
    recipe = replace(recipe, method=replace(recipe.method, options=_said(recipe, method)))
    recipe = within_budget(recipe, method, width)
    check_split(recipe, method, cohort_size(recipe, federation.clients), federation.clients)
    recipe, net = _begun(recipe, federation.shape, width, ranks, folder)
    head = method.begin_head(world, Stream.named(recipe.run.seed, "head", torch.zeros(1, dtype=torch.int64)))
    learned = learned_of(recipe.net, net, federation.shape, recipe.run.seed)
    if recipe.net.start and (folder is None or not (folder / KEPT).is_file()):
        check_drawn(net, recipe.net, learned)
    model = Model(net, head, choose_machine(recipe.run), learned, load_of(recipe, federation))
    if recipe.net.keep and isinstance(method, methods.SplitLoss):
        raise SelfsameError("net.keep: in split rounds the enclave computes the loss, which knows no first network")
    length = float(torch.linalg.vector_norm(model.first_theta, dtype=torch.float64))
    recipe = with_sums(recipe, federation.clients, length)
    if recipe.sums.summed and ranks.active:
        raise SelfsameError("sums.aggregation: torchrun adds updates up in the clear; train in one process")
    return Problem.of(recipe, method, model, federation, world, ranks)


def fitted_to(world: methods.World, method: LocalLoss, recipe: Recipe, expected: int | None = None) -> LocalLoss:
    """The method with what its options leave open, fitted to the clients that are there from the first round on."""
    first = replace(world, clients=min(expected or world.clients, initially_present(recipe, world.clients)))
    return method.fitted(first, min(cohort_size(recipe, world.clients), first.clients), recipe.run.rounds)


def set_options(recipe: Recipe, world: methods.World) -> dict[str, Any]:
    """The method's options that somebody set: those of the recipe that neither the preset nor the method's fit gives.

    The recipe of a run holds them all; each is left out in turn, to see whether it comes back as it was.
    """
    name, given = recipe.method.name, recipe.method.options
    usual = preset(name, recipe.data.name).get("method", {})
    found = {}
    for key, value in given.items():
        rest = {other: one for other, one in given.items() if other != key}
        left = {**({key: usual[key]} if key in usual else {}), **rest}
        try:
            unset = getattr(fitted_to(world, methods.make(name, left), recipe), key)
        except SelfsameError:  # the others do not go without it
            unset = None
        if value != unset:
            found[key] = value
    return found


def load_of(recipe: Recipe, federation: Federation) -> Load | None:
    """What the recipe asks of the network; where it wants compiled passes however short it is, it says no number."""
    if recipe.run.compile == "off":
        return None
    steps = steps_a_round(recipe.local, int(federation.count_N.max()))
    samples = recipe.run.rounds * cohort_size(recipe, federation.clients) * steps * recipe.local.batch
    return Load(federation.shape, None if recipe.run.compile == "on" else samples)


def learned_of(part: NetPart, net: nn.Module, shape: tuple[int, ...], seed: int) -> Learned | None:
    """What of the network, for samples of `shape`, learns; None: everything."""
    plain = not part.adapters and not part.whitened and (not part.train or "all" in part.train)
    return None if plain else choose_learned(net, part.train, part.adapters, shape, seed)


def keep_first(problem: Problem, folder: Path) -> None:
    """Keep the network that a run begins with in its folder, where the recipe and the seed do not give it again."""
    part = problem.recipe.net
    if part.started or part.anchored:
        keep_start(problem.model.net_views(problem.model.first_theta), part.digest, folder / KEPT)

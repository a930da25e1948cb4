"""Trains the language model for a given number of minutes.

The schedule follows the clock: warm-up over 2 % of the time, then a cosine to 10 % of the peak
rate, so a run ends when its minutes are over whatever the card's speed. On a GPU each layer is
compiled and the whole step, from drawing the window to the optimiser, is one CUDA graph.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from corpus import SETS, Split, Stream, load_split
from evaluate import bits_per_byte, print_report, report
from export import load_model, save_model
from model import LanguageModel, ModelShape

WARM_UP = 0.02
FLOOR = 0.1
NOTE_SECONDS = 10.0
TINY = ModelShape(width=64, layers=2, heads=2, key_dim=32, value_dim=32, mlp_size=128)


@dataclass(frozen=True)
class Options:
    """What a run is told."""

    minutes: float
    peak_rate: float
    rows: int
    length: int
    windows: int
    children: float
    seed: int
    weight_decay: float
    tf32: bool
    tiny: bool


def learning_rate(progress: float, peak: float) -> float:
    """The rate at `progress` in [0, 1] of the allowed time."""
    if progress < WARM_UP:
        return peak * max(progress / WARM_UP, 0.01)
    fraction = min((progress - WARM_UP) / (1 - WARM_UP), 1.0)
    return peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * fraction)))


def token_loss(hidden: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats; logits through bf16 under autocast, the softmax in fp32."""
    logits = F.linear(hidden, embedding).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    """The model, its optimiser and everything a captured step reads or writes in place."""

    def __init__(self, options: Options, stream: Stream, device: torch.device) -> None:
        self.options, self.stream, self.device = options, stream, device
        self.model = LanguageModel(TINY if options.tiny else ModelShape()).to(device)
        self.rate = torch.tensor(0.0, device=device)
        self.optimiser = self._make_optimiser()
        self.loss_of: Callable[[Tensor, Tensor, Tensor], Tensor] = token_loss
        self.place = torch.zeros(options.rows, dtype=torch.int64, device=device)
        self.fresh = torch.ones(options.rows, dtype=torch.bool, device=device)
        self.loss_sum = torch.zeros((), device=device)
        self.state = self.model.zero_state(options.rows)
        self.graph: torch.cuda.CUDAGraph | None = None

    def _make_optimiser(self) -> torch.optim.Optimizer:
        """AdamW; matrices decay, vectors (norms, biases, per-head numbers) do not."""
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [
            {"params": matrices, "weight_decay": self.options.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        cuda = self.device.type == "cuda"
        return torch.optim.AdamW(
            groups, lr=self.rate, betas=(0.9, 0.95), eps=1e-8, fused=True, capturable=cuda
        )

    def _step(self) -> None:
        """One whole step from self.place and self.fresh; its loss is added to self.loss_sum."""
        tokens, targets = self.stream.gather(self.place, self.fresh)
        keep = (~self.fresh).float()
        state = [(s * keep[:, None, None, None], t * keep[:, None, None]) for s, t in self.state]
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            hidden, after = self.model.hidden(tokens, state)
            loss = self.loss_of(hidden, self.model.embedding.weight, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimiser.step()
        for (memory, tail), (new_memory, new_tail) in zip(self.state, after, strict=True):
            memory.copy_(new_memory.detach())
            tail.copy_(new_tail.detach())
        self.loss_sum += loss.detach()

    def compile(self) -> None:
        """Compiles the layer (once for all layers) and the loss, then captures the step."""
        for layer in self.model.layers:
            layer.compile()
        self.loss_of = torch.compile(token_loss)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                # The rate is still 0 here, so these steps move nothing but Adam's averages.
                self.optimiser.zero_grad(set_to_none=True)
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.optimiser.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()
        self.loss_sum.zero_()

    def advance(self, rate: float) -> None:
        """Runs the next step at the given learning rate. Waits for the step before."""
        place, fresh = self.stream.advance()
        self.place.copy_(torch.from_numpy(place))
        self.fresh.copy_(torch.from_numpy(fresh))
        self.rate.fill_(rate)
        if self.graph is not None:
            self.graph.replay()
            return
        self.optimiser.zero_grad(set_to_none=True)
        self._step()

    def take_loss(self, steps: int) -> float:
        """Returns the mean loss of the last `steps` steps in nats per token and starts anew."""
        mean = self.loss_sum.item() / steps
        self.loss_sum.zero_()
        if not math.isfinite(mean):
            raise SystemExit("the loss is not finite: lower --lr")
        return mean


class Log:
    """Keeps the curve and the best checkpoint, judged by the children's validation books."""

    def __init__(self, out: Path, tokens: Path, device: torch.device, shape: ModelShape) -> None:
        self.out = out
        self.valid = {name: load_split(tokens / f"{name}-valid.npz.xz") for name in SETS}
        # A copy of its own: compiled layers would be compiled again for these shapes.
        self.copy = LanguageModel(shape).to(device)
        self.best = math.inf
        self.curve: list[dict[str, float]] = []

    def check(self, model: LanguageModel, row: dict[str, float]) -> None:
        """Measures the validation books and saves the model if it is the best so far."""
        self.copy.load_state_dict(model.state_dict())
        for name, split in self.valid.items():
            row[name] = bits_per_byte(self.copy, split)
        if row["children"] < self.best:
            self.best = row["children"]
            save_model(self.copy, self.out)

    def add(self, row: dict[str, float]) -> None:
        """Prints a row, adds it to the curve and writes the file."""
        print(" ".join(f"{key} {value:.6g}" for key, value in row.items()))
        self.curve.append(row)
        (self.out / "curve.json").write_text(json.dumps(self.curve))

    def plot(self) -> None:
        """Draws loss and validation over the tokens seen, if matplotlib is installed."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            print("matplotlib is not installed: no loss.png")
            return
        figure = Figure(figsize=(8, 5), layout="tight")
        left = figure.subplots()
        # The fall of the first moments would flatten all that follows.
        shown = self.curve[len(self.curve) // 20 :]
        left.plot([r["tokens"] for r in shown], [r["loss"] for r in shown], "C0")
        left.set(xlabel="tokens seen", ylabel="training loss, nats per token")
        right = left.twinx()
        for name, colour in (("children", "C1"), ("novels", "C2")):
            points = [(r["tokens"], r[name]) for r in self.curve if name in r]
            right.plot(*zip(*points, strict=True), f"{colour}o-", label=f"{name} valid")
        right.set(ylabel="bits per byte")
        right.legend()
        figure.savefig(self.out / "loss.png", dpi=110)


def run(options: Options, trainer: Trainer, log: Log, check_every: float) -> dict[str, float]:
    """Trains until the minutes are over; returns steps, tokens and seconds."""
    steps, noted, per_step = 0, 0, options.rows * options.length
    allowed, start = options.minutes * 60, time.monotonic()
    next_check, next_note = check_every * 60, NOTE_SECONDS

    def clock() -> float:
        return time.monotonic() - start

    while clock() < allowed:
        trainer.advance(learning_rate(clock() / allowed, options.peak_rate))
        steps += 1
        last = clock() >= allowed
        if not last and clock() < min(next_note, next_check):
            continue
        row = {
            "seconds": clock(),
            "step": steps,
            "tokens": steps * per_step,
            "loss": trainer.take_loss(steps - noted),
            "rate": trainer.rate.item(),
        }
        noted = steps
        # Time spent on a check does not count as training time.
        if last or clock() >= next_check:
            before = clock()
            log.check(trainer.model, row)
            start += clock() - before
            next_check = clock() + check_every * 60
        log.add(row)
        next_note = clock() + NOTE_SECONDS
    return {"steps": steps, "tokens": steps * per_step, "seconds": clock()}


def time_steps(trainer: Trainer, options: Options, steps: int) -> None:
    """Prints the speed of some steps at rate 0, before the clock of the run starts."""
    begin = time.monotonic()
    for _ in range(steps):
        trainer.advance(0.0)
    trainer.take_loss(steps)
    seconds = time.monotonic() - begin
    rate = steps * options.rows * options.length / seconds
    print(f"{steps} steps: {rate:,.0f} tokens/s, {1000 * seconds / steps:.2f} ms a step")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=Path, required=True, help="folder corpus.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a window")
    parser.add_argument("--windows", type=int, default=8, help="windows a row's state is carried")
    parser.add_argument("--children", type=float, default=0.35, help="share of children's books")
    parser.add_argument("--weight-decay", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check-minutes", type=float, default=1.0, help="between validations")
    parser.add_argument("--tf32", action="store_true", help="fp32 products through tf32")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the recipe")
    parser.add_argument("--splits", default="valid,test", help="reported at the end; may be empty")
    return parser.parse_args()


def main() -> None:
    args = parse()
    began = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options = Options(
        minutes=args.minutes,
        peak_rate=args.lr,
        rows=args.rows,
        length=args.length,
        windows=args.windows,
        children=args.children,
        seed=args.seed,
        weight_decay=args.weight_decay,
        tf32=args.tf32,
        tiny=args.tiny,
    )
    print(options)
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    args.out.mkdir(parents=True, exist_ok=True)
    splits: dict[str, Split] = {
        name: load_split(args.tokens / f"{name}-train.npz.xz") for name in SETS
    }
    mixture = {"children": options.children, "novels": 1 - options.children}
    shape = (options.rows, options.length)
    stream = Stream(splits, mixture, shape, options.windows, options.seed, device)
    trainer = Trainer(options, stream, device)
    log = Log(args.out, args.tokens, device, trainer.model.shape)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    print(f"{parameters:,} parameters, {time.monotonic() - began:.1f} s to load")
    if device.type == "cuda":
        trainer.compile()
        print(f"{torch.cuda.get_device_name()}: compiled after {time.monotonic() - began:.1f} s")
    time_steps(trainer, options, 20)
    done = run(options, trainer, log, args.check_minutes)
    log.plot()
    torch.set_float32_matmul_precision("highest")
    parts = [part for part in args.splits.split(",") if part]
    result = report(load_model(args.out).to(device), args.tokens, parts)
    print_report(result)
    summary = {"options": asdict(options), "parameters": parameters, **done, "result": result}
    (args.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    seconds = time.monotonic() - began
    print(f"{done['tokens']:,} tokens in {done['seconds']:.1f} s; {seconds:.1f} s in all")


if __name__ == "__main__":
    main()

"""What a newcomer met, tried again: python bench/newcomer.py [--rows 1,3-5] [--out TABLE.md].

Makes a small folder of pictures of people who do not exist, runs the commands of each row as a user would type them,
and prints a table in Markdown: the command, its exit code, and the lines that matter of what it said.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PEOPLE, EACH, SIDE = 24, 12, 32
ROUNDS = ("--rounds", "60")
FACES = ("--data", "imagefolder", "--path", "faces")
LOOSE = ("--most-fpr", "1")


def person(folder: Path, number: int, count: int = EACH, side: int = SIDE) -> None:
    """Pictures of somebody: a smooth pattern of their own, each time under other light and noise."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(30, 226, (6, 6)).astype(np.uint8))
    face = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), np.float64)
    for i in range(count):
        seen = face * rng.uniform(0.7, 1.2) + rng.normal(0, 14, (side, side))
        Image.fromarray(seen.clip(0, 255).astype(np.uint8)).save(folder / f"{i:02d}.png")


class Desk:
    """A folder where commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.environment = {
            **os.environ, "COLUMNS": "80", "HOME": str(folder / "home"), "SELFSAME_PASSPHRASE": "open, sesame, now",
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "selfsame", *map(str, words)], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def do(self, *words: str | Path, show: str | None = None) -> tuple[int, str]:
        """Run a command; with `show`, keep it for the table with the lines of its output that this pattern finds."""
        ended = self.start(*words)
        said = ended.communicate()[0]
        if show is not None:
            self.tell(" ".join(map(str, ("selfsame", *words))), ended.returncode, said, show)
        return ended.returncode, said

    def tell(self, command: str, code: int | str, said: str, show: str) -> None:
        found = [line.strip() for line in said.splitlines() if re.search(show, line)]
        self.lines.append(f"`{command}` → {code}" + (": " + " ".join(f"`{line}`" for line in found) if found else ""))

    def note(self, words: str) -> None:
        self.lines.append(words)


def prepared(folder: Path) -> Desk:
    """Twenty-four people, a run on them, and its model."""
    desk = Desk(folder)
    for number in range(PEOPLE):
        person(folder / "faces" / f"p{number:02d}", number)
    person(folder / "stranger", 900)
    code, said = desk.do("train", "fedhide", *FACES, *ROUNDS, "--out", "run", "--quiet")
    assert code == 0, said
    code, said = desk.do("export", "run", "--out", "model.onnx")
    assert code == 0, said
    return desk


def other_data(desk: Desk) -> None:
    for number, name in ((700, "tim"), (701, "zoe")):
        person(desk.folder / "faces" / name, number)
    for verb in ("evaluate", "resume", "export"):
        desk.do(verb, "run", show="other data")
    for name in ("tim", "zoe"):
        shutil.rmtree(desk.folder / "faces" / name)


def telemetry(desk: Desk) -> None:
    desk.do("enrol", "model.onnx", "faces/p00", "--user", "ann", *LOOSE, "--replace", "--store", "kept")
    desk.environment["HOME"] = str(desk.folder / "empty")
    (desk.folder / "empty").mkdir()
    desk.do("verify", "model.onnx", "ann", "faces/p00/00.png", "--store", "kept", show="accepted|rejected")
    files = sorted(str(p.relative_to(desk.folder / "empty")) for p in (desk.folder / "empty").rglob("*"))
    desk.note(f"an empty home then holds {', '.join(files) or 'nothing'}; a test forbids every socket")
    desk.environment["HOME"] = str(desk.folder / "home")


def bounded(desk: Desk) -> None:
    few = [f"faces/p01/{i:02d}.png" for i in range(10)]
    desk.do("enrol", "model.onnx", *few, "--user", "bob", "--rule", "bounded", show="selfsame:")


def strangers(desk: Desk) -> None:
    desk.do("enrol", "model.onnx", "faces/p02", "--user", "cy", *LOOSE, "--replace", show="strangers|refused")
    desk.do("enrol", "model.onnx", "faces/p03", "faces/p04", "--user", "two", show="selfsame:|doubtful")
    desk.do("enrol", "model.onnx", "faces/p09", "--user", "x", "--client", "p01", "--run", "run", show="selfsame:")
    desk.do("enrol", "model.onnx", "faces/p02", "--user", "cy", "--fpr", "0.05", "--replace", show="strangers|self")


def writers(desk: Desk) -> None:
    both = [desk.start("train", "fedhide", *FACES, *ROUNDS, "--quiet") for _ in range(2)]
    codes = [one.wait() for one in both]
    desk.note(
        f"two `selfsame train` at once → {codes[0]}, {codes[1]}: {', '.join(sorted(os.listdir(desk.folder / 'runs')))}"
    )
    one = desk.start("train", "fedhide", *FACES, "--rounds", "2000", "--out", "x", "--quiet")
    _until(lambda: (desk.folder / "x" / "recipe.toml").exists())
    desk.do("train", "fedhide", *FACES, *ROUNDS, "--out", "x", "--quiet", show="another process")
    desk.do("resume", "x", show="another process")
    one.send_signal(signal.SIGTERM)
    said = one.communicate()[0]
    desk.tell("kill of the first", one.returncode, said, "stopped|stopping")


def reports(desk: Desk) -> None:
    desk.do("evaluate", "run")
    for name in ("report.html", "evaluation.html"):
        text = (desk.folder / "run" / name).read_text()
        desk.note(f"`run/{name}`: `mathdefault` stands {text.count('mathdefault')} times in it{_width(desk, name)}")


def _width(desk: Desk, name: str) -> str:
    """How many tables and figures are cut at 1,280 and 390 px, by Chromium, where that is installed."""
    browser = shutil.which("chromium")
    if browser is None:
        return ""
    page = desk.folder / "run" / name
    found = []
    for width in (1280, 390):
        frame = desk.folder / "frame.html"
        all_of = "[...f.contentDocument.querySelectorAll('html,.wide,table,figure,section')]"
        tell = f"document.title={all_of}.filter(e=>e.scrollWidth>e.clientWidth+1).length"
        frame.write_text(
            f"<title></title><iframe id=f src='{page.as_uri()}' width={width} height=900 frameborder=0></iframe>"
            f"<script>onload=()=>{{{tell}}}</script>"
        )
        words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
                 "--disable-background-networking", "--disable-component-update", "--virtual-time-budget=4000",
                 f"--user-data-dir={desk.folder / 'chromium'}", "--dump-dom", frame.as_uri()]  # fmt: skip
        said = subprocess.run(words, capture_output=True, text=True, timeout=120).stdout
        titles = re.findall(r"<title>(.*?)</title>", said)
        found.append(f"{titles[0] if titles else 'unknown'} at {width} px")
    return f"; parts that are wider than their place: {', '.join(found)}"


def first_run(desk: Desk) -> None:
    one = desk.start("train", "fedhide", *FACES, "--out", "y")
    time.sleep(45)
    one.send_signal(signal.SIGINT)
    said = one.communicate()[0]
    desk.tell(
        "selfsame train fedhide --data imagefolder --path faces, Ctrl-C", one.returncode, said, "chosen|about|stop"
    )


def interrupts(desk: Desk) -> None:
    code = desk.do("resume", "y", "--rounds", "100", show="stopped|rounds")[0]
    desk.note(f"resumed to its end: {code == 0 or 'not yet: the run is past that'}")


def table(desk: Desk) -> None:
    said = desk.do("train", "fedhide", "--data", "digits", "--rounds", "20", "--quiet")[1]
    rows = [line for line in said.splitlines() if "  " in line.strip() or "─" in line]
    desk.note(f"the table of `selfsame train fedhide --data digits`: {max(map(len, rows))} columns at most")


def alarm(desk: Desk) -> None:
    said = desk.do("train", "fedhide", "--data", "digits", "--rounds", "200", "--quiet", show="^fedhide.*collapsed:")[1]
    desk.note(f"`collapsed` is said of it: {'collapsed:' in said}")
    said = " ".join(desk.do("train", "positive-only", "--data", "digits", "--quiet")[1].split())
    found = re.search(r"positive-only: collapsed: .*?(?= report:)", said)
    desk.note(f"`selfsame train positive-only --data digits`: `{found.group() if found else 'not collapsed'}`")


def own_method(desk: Desk) -> None:
    desk.note("CONTRIBUTING's example is run by a test in `train`, `evaluate`, `resume`, `export` with `--trust-code`")


def python(desk: Desk) -> None:
    code = (
        "import selfsame; r = selfsame.train('fedaws', data='digits', rounds=5, neighbours=1, out='py'); print(r); "
        "print(len(dir(selfsame)), 'names;', *sorted(__import__('os').listdir('py')))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=desk.folder, env=desk.environment, text=True,
                           capture_output=True)  # fmt: skip
    desk.tell(
        "selfsame.train('fedaws', data='digits', rounds=5, out='py')", ended.returncode, ended.stdout, "Run|names"
    )


def moved(desk: Desk) -> None:
    shutil.move(desk.folder / "faces", desk.folder / "people")
    desk.do("evaluate", "run", "--bootstrap", "0", show="--path")
    desk.do("evaluate", "run", "--bootstrap", "0", "--path", "people", show="selfsame:")
    shutil.move(desk.folder / "people", desk.folder / "faces")


def notes(desk: Desk) -> None:
    (desk.folder / "faces" / "p00" / "bad.png").write_bytes(b"no picture")
    person(desk.folder / "faces" / "few", 800, 1)
    desk.do("train", "fedhide", *FACES, "--rounds", "2", show="note:")
    desk.do("data", "check", "imagefolder", "faces", show="wrong:")
    (desk.folder / "faces" / "p00" / "bad.png").unlink()
    shutil.rmtree(desk.folder / "faces" / "few")


def columns(desk: Desk) -> None:
    rng = np.random.default_rng(5)
    names = ["speed", "force", "angle"]
    rows = ["person," + ",".join(names)]
    for who in range(12):
        centre = rng.normal(0, 3, 3)
        rows += [f"u{who}," + ",".join(f"{v:.4f}" for v in centre + rng.normal(0, 1, 3)) for _ in range(20)]
    (desk.folder / "taps.csv").write_text("\n".join(rows) + "\n")
    desk.do("train", "fedhide", "--data", "table", "--path", "taps.csv", "--set", "data.user=person", "--rounds", "30",
            "--quiet", "--out", "taps", show="selfsame:")  # fmt: skip
    desk.do("export", "taps", "--out", "taps.onnx")
    (desk.folder / "a.csv").write_text("speed,force,angle\n1,2,3\n")
    (desk.folder / "b.csv").write_text("angle,speed,force\n3,1,2\n")
    (desk.folder / "c.csv").write_text("speed,force\n1,2\n")
    desk.do("match", "taps.onnx", "a.csv", "b.csv", show="score")
    desk.do("match", "taps.onnx", "a.csv", "c.csv", show="selfsame:")


def formats(desk: Desk) -> None:
    picture = Image.open(desk.folder / "faces" / "p00" / "00.png")
    for ending in ("pgm", "bmp", "webp"):
        picture.save(desk.folder / f"ann.{ending}", **({"lossless": True} if ending == "webp" else {}))
        desk.do("match", "model.onnx", "faces/p00/00.png", f"ann.{ending}", show="score")
    person(desk.folder / "deep" / "ann" / "monday", 1, 3)
    person(desk.folder / "deep" / "bob" / "monday", 2, 3)
    desk.do("data", "check", "imagefolder", "deep", show="clients|wrong")


def nodes(desk: Desk) -> None:
    small = desk.folder / "three"
    for number in range(3):
        person(small / f"p{number}", number, 6)
    begun = time.perf_counter()
    desk.do("cluster", "up", "--data", "imagefolder", "--path", "three", "--rounds", "2", "--quiet",
            show="^│ +[12] |^ +[12] |folder:|selfsame:")  # fmt: skip
    desk.note(f"{time.perf_counter() - begun:.0f} s with the start of all processes")


def flipped(desk: Desk) -> None:
    shutil.copytree(desk.folder / "run", desk.folder / "flipped")
    file = desk.folder / "flipped" / "checkpoint" / "state.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 4
    file.write_bytes(data)
    desk.do("resume", "flipped", show="damaged")


def small(desk: Desk) -> None:
    said = desk.do("train", "--help")[1] + desk.do("enrol", "--help")[1]
    desk.note(f"`\\[required]` stands {said.count(chr(92) + '[')} times in the help of train and enrol")
    desk.do("enrol", "model.onnx", "faces/p00", "--user", "z", "--client", "99", "--run", "run", show="selfsame:")
    desk.do("train", "fedhide", "--data", "table", "--path", "taps.csv", show="selfsame:")
    (desk.folder / "semi.csv").write_text((desk.folder / "taps.csv").read_text().replace(",", ";"))
    desk.do("train", "fedhide", "--data", "table", "--path", "semi.csv", "--set", "data.user=person", "--rounds", "2",
            "--quiet", show="selfsame:|^fedhide")  # fmt: skip
    desk.do("evaluate", "run", "--bootstrap", "0", show="hreshold")


ROWS: dict[int, tuple[str, Callable[[Desk], None]]] = {
    1: ("wrong figures in silence on other data", other_data),
    2: ("telemetry of onnxruntime", telemetry),
    3: ("`bounded` with 10 pictures lets everybody in", bounded),
    4: ("`enrol` says nothing of strangers, checks nothing", strangers),
    5: ("runs overwrite one another", writers),
    6: ("reports: raw markup, cut columns", reports),
    7: ("the default `imagefolder` run is unusable on a CPU", first_run),
    8: ("interrupts lose work", interrupts),
    9: ("the first table at 80 columns", table),
    10: ('"collapsed" as a false alarm', alarm),
    11: ("own methods work in Python only", own_method),
    12: ("Python: unknown option, `repr` dumps tensors", python),
    13: ("relative paths are stored", moved),
    14: ("notes on the data are hidden", notes),
    15: ("table models keep no column names", columns),
    16: ("formats differ between training and device", formats),
    17: ("`cluster up` takes digits only", nodes),
    18: ("a flipped byte goes unnoticed", flipped),
    19: ("small things", small),
}


def asked(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        found.extend(range(int(low), int(high or low) + 1))
    return found


def table_of(rows: Iterable[tuple[int, list[str]]]) -> str:
    lines = ["| n | what a newcomer met | now |", "|---:|---|---|"]
    for number, said in rows:
        now = "<br>".join(one.replace("|", "\\|") for one in said)
        lines.append(f"| {number} | {ROWS[number][0]} | {now} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=f"1-{max(ROWS)}")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: list[tuple[int, list[str]]] = []
    with tempfile.TemporaryDirectory() as place:
        desk = prepared(Path(place))
        for number in asked(given.rows):
            desk.lines = []
            ROWS[number][1](desk)
            found.append((number, [line.replace(str(Path(place).resolve()), "...") for line in desk.lines]))
            print(number, *found[-1][1], sep="\n  ", flush=True)
            if given.out:
                given.out.write_text(table_of(found))
    print(table_of(found))


def _until(ready: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError("the first run never began")
        time.sleep(0.1)


if __name__ == "__main__":
    main()

"""SciTLDR-A from a checkout of allenai/scitldr: abstract to TLDR, one record for each reference."""

from __future__ import annotations

from pathlib import Path

from impatience.data.builders._writing import SplitWriter, one_line, read_json_lines, word_count

ORIGIN = "allenai/scitldr at 5ccad9c0"
FILES = {"train": "train", "dev": "validation", "test": "test"}


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``scitldr.*``, without references of under four words and repeated ones."""
    seen: set[tuple[str, str]] = set()
    with SplitWriter(out, "scitldr") as writer:
        for name, split in FILES.items():
            for paper in read_json_lines(checkout, f"SciTLDR-Data/SciTLDR-A/{name}.jsonl", ORIGIN):
                source = one_line(" ".join(paper["source"]))
                for number, reference in enumerate(map(one_line, paper["target"])):
                    key = (source, reference.lower())
                    if word_count(reference) < 4:
                        writer.drop("short")
                    elif key in seen:
                        writer.drop("duplicate")
                    else:
                        seen.add(key)
                        meta = {
                            "title": paper.get("title"),
                            "reference": number,
                            "split": split,
                            "licence": "Apache-2.0",
                        }
                        record = {"id": f"{paper['paper_id']}-{number}", "source": source, "target": reference}
                        writer.write(record | {"meta": meta})
    return writer.counts()

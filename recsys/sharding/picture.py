"""A plan as a page: each device a bar of its memory, each shard a block in it as wide as its bytes."""

from html import escape

from recsys.sharding.report import PlanReport

GIB = 1 << 30
COLORS = ("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac")


def html(found: PlanReport) -> str:
    """One page, without scripts or anything from elsewhere."""
    types = sorted({t.type for t in found.tables})
    color = {t: COLORS[i % len(COLORS)] for i, t in enumerate(types)}
    by_device: dict[int, list[tuple[int, str, str]]] = {d.rank: [] for d in found.devices}
    for t in found.tables:
        for s in t.shards:
            size = s["rows"] * s["columns"] * 4
            title = f"{t.table}: {t.type}, {t.kernel}, {s['rows']:,} x {s['columns']}, {size / GIB:.3f} GiB"
            by_device[s["rank"]].append((size, t.type, title))
    widest = max((sum(size for size, _, _ in shards) for shards in by_device.values()), default=1) or 1
    bars = []
    for d in found.devices:
        blocks = "".join(
            f'<i style="width:{100 * size / widest:.3f}%;background:{color[kind]}" title="{escape(title)}"></i>'
            for size, kind, title in sorted(by_device[d.rank], reverse=True)
        )
        numbers = (
            f"HBM {d.hbm / GIB:.1f} GiB ({d.hbm_free / GIB:.1f} free), DDR {d.ddr / GIB:.1f} ({d.ddr_free / GIB:.1f} "
            f"free), {d.sent_bytes / 1e6:,.1f} MB sent, {d.step_ms:.2f} ms"
        )
        bars.append(f"<p><b>{d.rank}</b><span>{blocks}</span><small>{numbers}</small></p>")
    legend = " ".join(f'<em style="background:{color[t]}">{t}</em>' for t in types)
    rows = "".join(
        f"<tr><td>{escape(t.table)}<td>{t.rows:,}<td>{t.dim}<td>{t.bytes / GIB:.3f}<td>{t.optimizer / GIB:.3f}"
        f"<td>{t.type}<td>{t.kernel}<td>{len(set(t.ranks))}"
        for t in sorted(found.tables, key=lambda t: -t.bytes)
    )
    return f"""<!doctype html><meta charset="utf-8"><title>plan for {escape(found.cluster)}</title>
<style>body{{font:14px system-ui;margin:2em;max-width:70em}}p{{display:flex;align-items:center;gap:.6em;margin:.2em 0}}
b{{width:2em;text-align:right}}span{{display:flex;flex:1;height:22px;background:#eee}}i{{border-right:1px solid #fff}}
small{{width:34em;color:#555}}em{{color:#fff;padding:2px 6px;font-style:normal}}td,th{{padding:2px 10px;text-align:right}}
</style><h1>{escape(found.cluster)}: {found.world_size} devices</h1>
<p>{sum(t.bytes for t in found.tables) / GIB:,.1f} GiB of weights; {found.batch_size:,} rows a step:
{found.step_ms:.2f} ms in the embeddings (estimated), bound by {found.bound}; imbalance {found.imbalance:.2f}</p>
<p>{legend}</p>{"".join(bars)}
<h2>Tables</h2><table><tr><th>table<th>rows<th>dim<th>GiB<th>optimizer GiB<th>type<th>kernel<th>devices{rows}</table>
"""

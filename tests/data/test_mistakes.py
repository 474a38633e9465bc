"""Mistakes in `data` that its check finds before a file is read: each is one line that begins with what to change."""

import pytest
from data_configs import data_from

from recsys.base.errors import UserError
from recsys.data.prepare.check_data import check_data

# the YAML (one flow mapping) | what the message has
MISTAKES = """
dense: {x: {transform: [lgo]}} | data.dense.x.transform: no transform lgo; did you mean log?
dense: {x: {transform: [{clip: {uper: 1}}]}} | x.transform: clip has no option uper; did you mean upper?
dense: {x: {transform: [clip]}} | clip: needs either bounds
dense: {x: {transform: [{clip: [2, 1]}]}} | clip: its lower bound 2 is above its upper bound 1
dense: {x: {transform: [{clip: [a, b]}]}} | clip: its options ['a', 'b'] have the wrong type
dense: {x: {transform: [{clip: [1, 2, [0, 1], 4]}]}} | clip takes at most lower, upper, quantiles
dense: {x: {transform: [{clip: {quantiles: [0.5]}}]}} | clip: quantiles must be two numbers
dense: {x: {transform: [{clip: [0, .inf]}]}} | clip: its bounds must be finite numbers
dense: {x: {transform: [{log: 3}]}} | log takes no options
dense: {x: {transform: [{log: {}, minmax: {}}]}} | must be a name or one {name: options}
dense: {x: {transform: [{target: {folds: 1}}]}} | target: folds must be
dense: {x: {transform: [{target: {smoothing: -1}}]}} | target: smoothing must be
dense: {x: {transform: [log, count]}} | count reads the raw column; put it first
dense: {x: {fill: 0, transform: [count]}} | x.fill=0: is ignored with count
dense: {x: {difference: 1, transform: [count]}} | x.difference=1: is ignored with count
dense: {x: {cyclic: [huor]}} | data.dense.x.cyclic: cyclic: 'huor' is not valid; did you mean hour?
dense: {x: {cyclic: []}} | data.dense.x.cyclic: is empty
dense: {x: {cyclic: [hour], transform: [log]}} | takes neither fill nor transform
dense: {x: {cyclic: [hour]}, x_hour: {}, x_hour_sin: {}} | makes a feature x_hour_sin, which exists
dense: {x: {cyclic: [hour, hour]}} | names hour twice
dense: {x: {column: y}} | data.dense.x: reads y, the column of the label
dense: {x: {width: 1, split: ;}} | data.dense.x: a vector of one number
dense: {x: {width: 4, transform: [log]}} | data.dense.x.transform: does not apply to a vector
dense: {x: {width: 4, normalise: [l1]}} | data.dense.x.normalise: l1 is unknown
dense: {x: {lag: 1}} | data.dense.x.lag=1: needs data.group
dense: {a: {}}, sparse: {a: {}} | both a dense and a sparse feature
dense: {label: } | 'label' is not a valid name
sparse: {p/q: } | 'p/q' is not a valid name
sparse: {p: {table: q.r}} | 'q.r' is not a valid name
dense: {} | no feature
sparse: {s: {cross: [a, a]}} | data.sparse.s.cross=['a', 'a']: needs two or more different columns
sparse: {s: {cross: [a, b], column: c}} | data.sparse.s.column=c: is ignored with cross
sparse: {s: {cross: [a, b], split: ' '}} | split and cross cannot be combined
sparse: {s: {cross: [a, y]}} | data.sparse.s: reads y, the column of the label
sparse: {s: {pattern: '(?=x)'}} | data.sparse.s.pattern='(?=x)': not a regular expression: look-around
sparse: {s: {pattern: a, split: b}} | split and pattern cannot be combined
sparse: {s: {quantiles: 9, encode: hash}} | data.sparse.s.encode=hash: does not apply to quantiles
sparse: {s: {quantiles: 9, min_count: 2}} | data.sparse.s.min_count=2: does not apply to quantiles
sparse: {s: {quantiles: 9}, t: {table: s}} | data.sparse.t: shares its table with s
sparse: {s: {quantiles: 9}, t: {quantiles: 8, table: s}} | data.sparse.t: shares its table with s
sparse: {s: {encode: hsah}} | data.sparse.s.encode=hsah: unknown; did you mean hash?
sparse: {s: {encode: hash}} | data.sparse.s.buckets: missing
sparse: {s: {encode: hash, buckets: 9, min_count: 2}} | s.min_count=2: does not apply to encode=hash
sparse: {s: {buckets: 9}} | data.sparse.s.buckets=9: does not apply to encode=vocabulary
sparse: {s: {}}, sparse_defaults: {buckets: 9} | data.sparse_defaults.buckets=9: no feature has encode=hash
sparse: {s: {encode: hash, buckets: 9}, t: {table: s}} | data.sparse.t: shares its table with s
sparse: {s: {encode: hash, buckets: 9}, t: {table: s, encode: hash, buckets: 8}} | both must have the same encode
sparse: {s: {encode: id}} | rows: missing; encode=id needs it
sparse: {s: {encode: id, rows: 3, min_count: 2}} | min_count=2: does not apply to encode=id
sparse: {s: {encode: id, rows: 3, cross: [p, q]}} | cannot be combined with encode=id
sparse: {s: {encode: id, rows: 3, lag: 1}} | lag=1: cannot be combined with encode=id
sparse: {s: {encode: hash, buckets: 9, vectors: {file: v.parquet}}} | data.sparse.s.vectors: needs encode=vocabulary or id
sparse: {s: {vectors: {file: v.txt}}} | must be a .parquet, a .npz or a .npy file
sparse: {s: {vectors: {file: v.npy}}, i: {table: s, vectors: {file: v.npy}}} | i shares the table and has vectors, too
sparse: {x: {per: group}} | applies only with data.sequences
group: {by: u}, dense: {x: {lag: 1, difference: 1}} | lag and difference cannot be combined
group: {by: u}, sparse: {x: {difference: 1}} | set quantiles
group: {by: u}, sparse: {x: {last: 2, split: ' '}} | reads one value a row, but split makes several
group: {by: u, gap: 3}, sparse: {x: {}} | data.group.gap=3.0: needs data.group.order
group: {by: u}, sequences: {max_length: 3}, sparse: {x: {}}, split: {by: random} | would split sequences at random
group: {by: u}, sequences: {max_length: 1, min_length: 4}, sparse: {x: {}} | must be at most max_length
group: {by: u}, sequences: {max_length: 3}, sparse: {x: {per: group}} | needs a sparse feature of the items
group: {by: u}, sequences: {max_length: 3}, sparse: {x: {split: ' '}} | an item of a sequence has one value
group: {by: u, together: true}, sequences: {max_length: 5}, sparse: {x: {}} | data.group.together=true: applies to rows with labels
group: {by: u, ties: moment}, sparse: {x: {}} | data.group.ties=moment: needs data.group.order
group: {by: u, order: t, ties: moment}, sequences: {max_length: 3}, sparse: {x: {}} | data.group.ties=moment: does not apply to sequences
group: {by: u}, sparse: {x: {where: y = 1}} | x.where='y = 1': chooses among earlier rows
group: {by: u}, sparse_defaults: {where: y = 1}, sparse: {x: {}} | sparse_defaults.where: cannot be
group: {by: u}, sparse: {x: {column: y, lag: 1}} | data.sparse.x: reads y, the column of the label; choose another
group: {by: u}, sparse_defaults: {last: 3}, sparse: {x: {}} | data.sparse_defaults.last: cannot be a default
group: {by: u}, sparse: {a: {age: true, last: 2, quantiles: 3}} | a.age=true: needs data.group.order
group: {by: u, order: t}, sparse: {a: {age: true, lag: 1, quantiles: 3}} | data.sparse.a.age=true: needs last
group: {by: u, order: t}, sparse: {a: {age: true, last: 2, difference: 1, quantiles: 3}} | difference and last cannot
group: {by: u, order: t}, sparse: {a: {age: true, last: 2, encode: id, rows: 9}} | a.age=true: is a number; set quantiles
group: {by: u, order: t}, sparse: {a: {}}, sparse_defaults: {age: true} | data.sparse_defaults.age: cannot be a default
group: {by: u, order: t}, sparse: {a: {}}, items: {feature: a, file: i.csv, key: a, sparse: {k: {age: true}}} | items.sparse.k.age
group: {by: u}, sequences: {max_length: 3, held_out: all}, split: {by: hash, column: u}, sparse: {x: {}} | held_out=all: with data.split.by=hash
sequences: {max_length: 3}, sparse: {x: {}} | data.sequences: needs data.group
dense: {x: {}}, labels: {a: {kind: classes}} | data.labels.a.classes: missing
dense: {x: {}}, labels: {a: {classes: [p, q]}} | applies only to kind classes
dense: {x: {}}, labels: {a: {log: true}} | data.labels.a.log: applies only to kind regression
dense: {x: {}}, labels: {a: {only_if: b}} | data.labels.a.only_if=b: must be another binary label
dense: {x: {}}, labels: {a.b: {}} | not a valid name of a feature, table or label
dense: {x: {}}, label: {column: z}, labels: {a: {}} | data.label: is ignored with data.labels
dense: {x: {}}, label: {column: z, kind: binary, positive: ['1'], at_least: 1} | cannot be combined
dense: {x: {}}, label: {column: z, at_least: 1} | data.label.at_least: applies only to kind binary
dense: {x: {}}, labels: {b: {}, a: {only_if: b, otherwise: 2}} | a.otherwise=2: no label
dense: {x: {}}, labels: {a: {otherwise: 0}} | data.labels.a.otherwise=0: is the label of rows
dense: {m: {column: s, transform: [target]}}, labels: {a: {kind: classes, classes: [p, q]}} | data.dense.m: target is the mean
dense: {x: {}}, labels: {a: {}, b: {}}, sample_negatives: 0.5 | data.sample_negatives=0.5: needs one binary label
dense: {x: {}}, labels: {x: {}} | data.dense.x: reads x, the column of the label
dense: {x: {}}, split: {validation_rows: random} | applies to data.split.by=files without validation_files
dense: {x: {}}, split: {by: time} | split.column
dense: {x: {}}, split: {by: kfold, fold: 5} | below data.split.folds
dense: {x: {}}, split: {by: files, train_files: [a], validation_files: [b]} | test_files
dense: {x: {}}, split: {validation: -0.1} | shares
dense: {x: {}}, split: {validation: 1, test: 0} | below 1
dense: {x: {}}, split: {by: kfold, test: 0} | data.split.test=0: folds, origins and test_files test
dense: {x: {}}, split: {by: time, column: t, test: 0, origins: 3} | data.split.test=0: folds, origins and test_files test
dense: {x: {}}, split: {by: files, train_files: [a], test_files: [b, c], test: 0} | data.split.test=0: folds, origins and test_files test
dense: {x: {}}, source: {format: cvs} | did you mean csv?
dense: {x: {}}, source: {separator: ''} | one or several characters
dense: {x: {}}, source: {columns: [a, a]} | occurs twice
dense: {x: {}}, root: sqlite:///x.db, source: {format: sql} | data.source.query: missing
dense: {x: {}}, root: x, source: {query: SELECT 1} | applies only to format sql; this is csv
dense: {x: {}}, root: x, source: {format: sql, query: DROP TABLE log} | must be one query that reads rows
dense: {x: {}}, root: x, source: {format: sql, query: SELECT 1; DROP TABLE log} | must be one query that reads rows
dense: {x: {}}, source: {format: delta} | needs the folder of the table
dense: {x: {}}, root: x, source: {format: delta, joins: [{file: f.csv, key: k}]} | takes no side files
"""


@pytest.mark.parametrize("mistake", MISTAKES.strip().splitlines())
def test_one_line_says_what_to_change(mistake: str) -> None:
    yaml, _, told = mistake.rpartition(" | ")
    label = {} if "labels: " in yaml else {"label": {"column": "y", "kind": "regression"}}
    data = data_from(label, f"{{{yaml}}}")
    with pytest.raises(UserError) as e:
        check_data(data)
    assert told in str(e.value) and "\n" not in str(e.value)

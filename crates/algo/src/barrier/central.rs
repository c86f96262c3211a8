//! All to rank 0, and back.

use crate::properties::properties;
use crate::{Action, Cost, Recv, Send, Shape, Span, Step};

properties! {
    op: Barrier, name: "central",
    idea: "Everybody tells rank 0, and when all have, it tells everybody. Each of the others waits for one thing only: the choice \
           where ranks share cores, and every wait is for a turn.",
    rounds: "2(P − 1)", sent: "nothing but empty messages", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "folklore",
    cost: |v| {
        let others = v.world_size as f64 - 1.0;
        let messages = 2.0 * others;
        Cost { rounds: messages, hops: 2.0 * others.min(1.0), messages, ..Cost::default() }
    },
    picture: "\
round  rank 0   rank 1   rank 2   rank 3   rank 4
    1      ·←1  ·→0
    2      ·←2           ·→0
    3      ·←3                    ·→0
    4      ·←4                             ·→0
    5  ·→1          ·←0
    6  ·→2                   ·←0
    7  ·→3                            ·←0
    8  ·→4                                     ·←0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let to = |peer| Some(Send { peer, span: Span::default() });
    let from = |peer| Some(Recv { peer, span: Span::default(), action: Action::Copy });
    if shape.rank > 0 {
        return vec![Step { send: to(0), recv: None }, Step { send: None, recv: from(0) }];
    }
    let come = (1..shape.world_size).map(|peer| Step { send: None, recv: from(peer) });
    let go = (1..shape.world_size).map(|peer| Step { send: to(peer), recv: None });
    come.chain(go).collect()
}

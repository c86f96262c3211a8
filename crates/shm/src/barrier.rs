//! The barrier among ranks that share memory.

use crate::plan::{Kind, Plan};
use crate::team::{Room, Team};
use crate::{Call, Fault};
use phalanx_algo::MemoryWay;
use phalanx_core::OpKind;

impl Team {
    /// Returns on every rank after all ranks have called it.
    ///
    /// With a core for each rank, everybody looks at everybody: one exchange of lines. Where ranks share cores, rank 0
    /// looks and lets the others go: each of them then waits for one thing only, and gives the core away less often.
    ///
    /// # Errors
    /// [`Fault`]; the team is closed then.
    pub fn barrier(&mut self, call: &mut Call<'_>) -> Result<(), Fault> {
        let way = self.choose(call.signature.op, OpKind::Barrier, 0, 0, 1).way;
        self.run(call, Plan::of(Kind::Barrier, way), |team, call| {
            let piece = team.next_piece();
            team.reserve(piece, Room::Line, call)?;
            if way == MemoryWay::Mutual {
                team.post(piece, &[]);
                for peer in team.peers() {
                    team.arrived(peer, piece, call)?;
                }
            } else if team.rank == 0 {
                for peer in team.peers() {
                    team.arrived(peer, piece, call)?;
                }
                team.post(piece, &[]);
            } else {
                team.post(piece, &[]);
                team.arrived(0, piece, call)?;
            }
            team.done(piece);
            Ok(())
        })
    }
}

//! The check of an operation is told once that data are on their way: before the rank waits for long, or at the end if it waits for nobody.

use super::*;

#[derive(Default)]
struct Told {
    times: u32,
    looks: u32,
}

impl WaitCheck for Told {
    fn look(&mut self, _peer: usize, waited: Duration) -> Result<(), Stopped> {
        assert_eq!(self.times, 1, "told before the wait");
        self.looks += 1;
        Patient(Duration::from_secs(30)).look(0, waited)
    }

    fn look_meanwhile(&mut self, _peer: usize) -> Result<(), Stopped> {
        Ok(())
    }

    fn on_the_way(&mut self) {
        self.times += 1;
    }
}

#[test]
fn a_check_is_told_once_whoever_waits() {
    on_team(2, true, Reach::Staging, |rank| {
        let (root, mut seq) = (rank.rank == 0, 0);
        let mut perform =
            |team: &mut Team, operation: &dyn Fn(&mut Team, &mut Call<'_>) -> Result<(), Fault>| {
                seq += 1;
                let mut told = Told::default();
                let signature = signature(OpKind::Broadcast, 2);
                let mut call = Call { seq, signature: &signature, wait_check: &mut told };
                operation(team, &mut call).unwrap();
                assert_eq!(told.times, 1);
                told.looks
            };
        // The root of a small broadcast waits for nobody.
        assert!(perform(&mut rank.team, &|team, call| team.broadcast(call, &mut [7; 8], 0)) == 0 || !root);
        if !root {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(perform(&mut rank.team, &|team, call| team.barrier(call)) > 0 || !root);
        // More than one piece, and every post is followed by a wait.
        perform(&mut rank.team, &|team, call| team.broadcast(call, &mut vec![7; 1 << 20], 0));
    });
}

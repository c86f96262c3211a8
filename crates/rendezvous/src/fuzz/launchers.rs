//! What launchers and ranks say before ranks know each other.

use crate::meeting::Meeting;
use crate::slurm::tasks_of_node;

/// A text from rank 0 is refused or read as it would be written, and no error repeats it.
pub fn meeting(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(meeting) = Meeting::from_text(&text) {
        let written = meeting.to_text();
        assert!(
            written.bytes().all(|b| b.is_ascii_graphic()) && written.len() < 1000,
            "{} bytes",
            written.len()
        );
        assert_eq!(Meeting::from_text(&written).expect("it was written"), meeting);
    }
}

/// A list of Slurm's gives each node at least one task, and has an end.
pub fn tasks(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for node in [0, 1, 7, usize::MAX] {
        assert_ne!(tasks_of_node(&text, node), Some(0));
    }
}

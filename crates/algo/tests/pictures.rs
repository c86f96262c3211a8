//! The pictures among the properties are what the schedules draw.

use phalanx_algo::{Algorithm, draw};
use std::path::Path;

/// Set to rewrite the pictures after a change of a schedule; the diff is for the reviewer.
const REDRAW: &str = "PHALANX_REDRAW";

/// How the picture of an algorithm begins.
const BEGIN: &str = "    picture: \"\\\n";

#[test]
fn pictures_show_what_the_schedules_draw() {
    for &algorithm in Algorithm::ALL {
        let picture = draw(algorithm, if algorithm.supports(5) { 5 } else { 4 });
        if std::env::var_os(REDRAW).is_some() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(format!("{algorithm}.rs"));
            let code = std::fs::read_to_string(&file).unwrap();
            let (before, old) = code.split_once(BEGIN).expect("an algorithm has a picture");
            let (_, after) = old.split_once('"').expect("a picture ends");
            std::fs::write(file, format!("{before}{BEGIN}{picture}\"{after}")).unwrap();
        } else {
            assert_eq!(
                algorithm.properties().picture,
                picture,
                "{algorithm}: if the change is meant, set {REDRAW} and run again"
            );
        }
    }
}

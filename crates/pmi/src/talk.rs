//! What a process and its launcher say to each other in PMI-1, without the socket.
//!
//! Each side says one line at a time: words `name=value`, of which the first is `cmd`. The process asks, the launcher answers.

use crate::fault::Fault;

/// The longest line that is read. The longest value of the launchers there are has 1024 bytes.
pub(crate) const LINE_MAX: usize = 8 << 10;

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// This line is to be sent, and its answer read.
    Ask(String),
    /// All is said: this is what the one process has told all.
    Heard(String),
}

/// The question whose answer is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Init,
    Maxes,
    Name,
    Put,
    Barrier,
    Get,
    Finalize,
}

/// One process's part: it says `value` if it has one, waits until all processes are there, and hears what was said.
#[derive(Debug)]
pub(crate) struct Talk<'a> {
    key: &'a str,
    value: Option<&'a str>,
    asked: Asked,
    /// The launcher's name for the table of this job.
    table: String,
    heard: String,
}

impl<'a> Talk<'a> {
    /// `key` and `value` are words: without spaces and other characters that end a word or a line.
    ///
    /// Returns the talk and the first line.
    pub(crate) fn begin(key: &'a str, value: Option<&'a str>) -> Result<(Self, String), Fault> {
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_graphic());
        if !is_word(key) || key.contains('=') || !value.is_none_or(is_word) {
            return Err(Fault::unusable(format!(
                "{key:?} or its value is not one word of printable characters"
            )));
        }
        let (table, heard) = Default::default();
        let talk = Self { key, value, asked: Asked::Init, table, heard };
        Ok((talk, "cmd=init pmi_version=1 pmi_subversion=1\n".into()))
    }

    /// What the launcher owes now, in words.
    pub(crate) fn awaited(&self) -> &'static str {
        match self.asked {
            Asked::Barrier => "all processes of the job at the launcher's barrier",
            _ => "an answer of the launcher",
        }
    }

    /// Takes an answer, without the end of its line.
    pub(crate) fn answer(&mut self, line: &str) -> Result<Step, Fault> {
        let words = Words(line);
        let expected = match self.asked {
            Asked::Init => "response_to_init",
            Asked::Maxes => "maxes",
            Asked::Name => "my_kvsname",
            Asked::Put => "put_result",
            Asked::Barrier => "barrier_out",
            Asked::Get => "get_result",
            Asked::Finalize => "finalize_ack",
        };
        if words.get("cmd") != Some(expected) {
            return Err(Fault::unusable(format!("the launcher answered {:?}, not {expected}", short(line))));
        }
        // The answers that say nothing of success are successes.
        if words.get("rc").is_some_and(|rc| rc != "0") {
            return Err(Fault::unusable(format!("the launcher refused: {:?}", short(line))));
        }
        let needed = |name: &str| {
            words
                .get(name)
                .ok_or_else(|| Fault::unusable(format!("the launcher left out {name}: {:?}", short(line))))
        };
        let (key, table) = (self.key, &self.table);
        let (asked, ask) = match self.asked {
            Asked::Init => (Asked::Maxes, "cmd=get_maxes\n".into()),
            Asked::Maxes => {
                self.check_lengths(needed("keylen_max")?, needed("vallen_max")?)?;
                (Asked::Name, "cmd=get_my_kvsname\n".into())
            }
            Asked::Name => {
                self.table = needed("kvsname")?.to_owned();
                match self.value {
                    Some(value) => {
                        (Asked::Put, format!("cmd=put kvsname={} key={key} value={value}\n", self.table))
                    }
                    None => (Asked::Barrier, BARRIER.into()),
                }
            }
            Asked::Put => (Asked::Barrier, BARRIER.into()),
            Asked::Barrier => (Asked::Get, format!("cmd=get kvsname={table} key={key}\n")),
            Asked::Get => {
                self.heard = needed("value")?.to_owned();
                (Asked::Finalize, "cmd=finalize\n".into())
            }
            Asked::Finalize => return Ok(Step::Heard(std::mem::take(&mut self.heard))),
        };
        self.asked = asked;
        Ok(Step::Ask(ask))
    }

    fn check_lengths(&self, keys: &str, values: &str) -> Result<(), Fault> {
        let (key, value) = (self.key.len(), self.value.map_or(0, str::len));
        // A launcher counts the end of a text as one more.
        let fits = |len: usize, max: &str| max.parse().is_ok_and(|max: usize| len < max);
        if fits(key, keys) && fits(value, values) {
            return Ok(());
        }
        Err(Fault::unusable(format!(
            "the launcher takes keys of {:?} bytes and values of {:?}, and these have {key} and {value}",
            short(keys),
            short(values)
        )))
    }
}

const BARRIER: &str = "cmd=barrier_in\n";

/// The words of a line.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    /// The value of the first word of that name.
    fn get(&self, name: &str) -> Option<&'a str> {
        let mut words = self.0.split([' ', '\t', '\r']).filter_map(|word| word.split_once('='));
        words.find(|(n, _)| *n == name).map(|(_, value)| value)
    }
}

/// For an error: as much as a reader needs, and no value, which may be a secret.
fn short(text: &str) -> &str {
    let text = text.split("value=").next().unwrap_or_default();
    match text.char_indices().nth(120) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// Makes lines of what comes in pieces.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    /// Takes what has come.
    ///
    /// # Errors
    /// A line is too long.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.0.extend_from_slice(bytes);
        let open = self.0.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        match self.0.len() - open > LINE_MAX || self.0.len() > 4 * LINE_MAX {
            true => Err(Fault::unusable(format!("the launcher said a line of more than {LINE_MAX} bytes"))),
            false => Ok(()),
        }
    }

    /// The next whole line, without its end.
    pub(crate) fn pop(&mut self) -> Result<Option<String>, Fault> {
        let Some(end) = self.0.iter().position(|b| *b == b'\n') else { return Ok(None) };
        let rest = self.0.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.0, rest);
        line.pop();
        let text = String::from_utf8(line);
        text.map(Some).map_err(|_| Fault::unusable("the launcher said what is no text"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What MPICH 4.0's mpiexec.hydra answered.
    const HYDRA: [&str; 7] = [
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
        "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024",
        "cmd=my_kvsname kvsname=kvs_12131_0_175490499_vm",
        "cmd=put_result rc=0 msg=success",
        "cmd=barrier_out",
        "cmd=get_result rc=0 msg=success value=1,2.:/x=y",
        "cmd=finalize_ack",
    ];

    fn play(value: Option<&str>, answers: &[&str]) -> Result<(Vec<String>, Option<String>), Fault> {
        let (mut talk, first) = Talk::begin("phalanx", value)?;
        let mut asked = vec![first];
        for answer in answers {
            match talk.answer(answer)? {
                Step::Ask(line) => asked.push(line),
                Step::Heard(heard) => return Ok((asked, Some(heard))),
            }
        }
        Ok((asked, None))
    }

    #[test]
    fn one_says_it_and_all_hear_it() {
        let (asked, heard) = play(Some("1,2.:/x=y"), &HYDRA).unwrap();
        assert_eq!(heard.as_deref(), Some("1,2.:/x=y"));
        assert_eq!(
            asked,
            [
                "cmd=init pmi_version=1 pmi_subversion=1\n",
                "cmd=get_maxes\n",
                "cmd=get_my_kvsname\n",
                "cmd=put kvsname=kvs_12131_0_175490499_vm key=phalanx value=1,2.:/x=y\n",
                "cmd=barrier_in\n",
                "cmd=get kvsname=kvs_12131_0_175490499_vm key=phalanx\n",
                "cmd=finalize\n",
            ]
        );
        let listens: Vec<&str> = HYDRA.iter().copied().filter(|line| !line.starts_with("cmd=put")).collect();
        let (asked, heard) = play(None, &listens).unwrap();
        assert_eq!((heard.as_deref(), asked.len()), (Some("1,2.:/x=y"), 6));
    }

    #[test]
    fn a_launcher_that_refuses_or_talks_of_something_else_is_quoted() {
        for (at, answer, said) in [
            (0, "cmd=response_to_init rc=-1 pmi_version=2", "refused"),
            (0, "", "not response_to_init"),
            (1, "cmd=maxes keylen_max=64", "left out vallen_max"),
            (1, "cmd=maxes keylen_max=4 vallen_max=1024", "takes keys of \"4\""),
            (1, "cmd=maxes keylen_max=64 vallen_max=-1", "values of \"-1\""),
            (2, "cmd=my_kvsname", "left out kvsname"),
            (3, "cmd=put_result rc=-1 msg=duplicate_key", "duplicate_key"),
            (4, "cmd=abort exitcode=9", "not barrier_out"),
            (5, "cmd=get_result rc=-1 msg=key_phalanx_not_found value=unknown", "not_found"),
        ] {
            let mut answers = HYDRA;
            answers[at] = answer;
            let fault = play(Some("x"), &answers[..=at]).unwrap_err().to_string();
            assert!(fault.contains(said), "{answer}: {fault}");
        }
    }

    #[test]
    fn no_error_repeats_a_value() {
        let mut answers = HYDRA;
        answers[3] = "cmd=put_result rc=-1 value=hidden";
        let fault = play(Some("hidden"), &answers[..4]).unwrap_err().to_string();
        assert!(fault.contains("put_result") && !fault.contains("hidden"), "{fault}");
    }

    #[test]
    fn only_words_are_said() {
        for (key, value) in
            [("", "x"), ("a b", "x"), ("k=", "x"), ("k", ""), ("k", "a b"), ("k", "a\nb"), ("k", "ä")]
        {
            assert!(Talk::begin(key, Some(value)).is_err(), "{key:?} {value:?}");
        }
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_they_are_cut(text in "[a-z=\n ]{0,200}", cuts in prop::collection::vec(1usize..9, 1..100)) {
            let (mut lines, mut got, mut rest) = (Lines::default(), Vec::new(), text.as_bytes());
            for cut in cuts.iter().cycle() {
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                lines.push(piece).unwrap();
                while let Some(line) = lines.pop().unwrap() {
                    got.push(line);
                }
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            let whole: Vec<_> = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).collect();
            prop_assert_eq!(got, whole);
        }

        #[test]
        fn whatever_is_answered_there_is_an_end(answers in prop::collection::vec(".{0,60}", 0..12), right in 0usize..8) {
            let mut all: Vec<&str> = HYDRA[..right.min(7)].to_vec();
            all.extend(answers.iter().map(String::as_str));
            let _ = play(Some("x"), &all);
        }
    }

    #[test]
    fn an_endless_line_is_given_up() {
        let mut lines = Lines::default();
        let outcome = (0..100).try_for_each(|_| lines.push(&[b'x'; 1000]));
        assert!(outcome.unwrap_err().to_string().contains("8192 bytes"));
        let mut lines = Lines::default();
        lines.push(b"\xff\n").unwrap();
        assert!(lines.pop().is_err());
    }
}

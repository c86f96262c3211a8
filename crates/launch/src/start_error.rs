//! Why a program cannot be started. The system says the same of several mistakes.

use phalanx_core::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// More of a first line no system reads.
const FIRST_LINE_MAX: u64 = 4096;

/// The error for a program that the system refused to start, in `folder`, or if that is `None`, in this process's.
pub(crate) fn why_not_started(program: &OsStr, folder: Option<&Path>, error: io::Error) -> Error {
    let name = program.display();
    let by_path = program.to_string_lossy().contains(std::path::MAIN_SEPARATOR);
    let file = if by_path {
        Some(folder.unwrap_or(Path::new("")).join(program)).filter(|path| path.exists())
    } else {
        find(program)
    };
    match (error.kind(), file) {
        (ErrorKind::NotFound, Some(file)) => match interpreter(&file) {
            Some(interpreter) => Error::Unavailable {
                what: format!("the interpreter {interpreter} of {name}"),
                tried: format!("that path, which the first line of {} names", file.display()),
            },
            None => Error::Unavailable {
                what: format!("what {name} needs to be started, as its dynamic loader,"),
                tried: format!("{}, which is there: was it built for another system?", file.display()),
            },
        },
        (ErrorKind::NotFound, None) => {
            let here = folder.unwrap_or(Path::new("")).join(program);
            let tried = match by_path {
                true => "that path".to_owned(),
                false if here.is_file() => format!("the folders of PATH; the one that is here is ./{name}"),
                false => "the folders of PATH".to_owned(),
            };
            Error::Unavailable { what: format!("program {name}"), tried }
        }
        (_, Some(file)) if file.is_dir() => Error::io(
            format!("starting {name}"),
            io::Error::new(ErrorKind::PermissionDenied, "it is a folder, not a program"),
        ),
        (ErrorKind::PermissionDenied, Some(file)) => {
            let what =
                format!("{error}: make it executable (chmod +x {}), or start what runs it", file.display());
            Error::io(format!("starting {name}"), io::Error::new(ErrorKind::PermissionDenied, what))
        }
        _ => {
            let error = match out_of(&error) {
                Some(what) => io::Error::new(error.kind(), format!("{error}: {what}")),
                None => error,
            };
            Error::io(format!("starting {name}"), error)
        }
    }
}

/// What there are too few of, if the system says that.
fn out_of(error: &io::Error) -> Option<&'static str> {
    #[cfg(unix)]
    {
        use rustix::io::Errno;
        let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
        if is(Errno::AGAIN) {
            return Some(
                "as many processes and threads run as are allowed; see ulimit -u, pids.max of the container or service, and kernel.pid_max",
            );
        }
        if is(Errno::MFILE) || is(Errno::NFILE) {
            return Some("as many descriptors are open as are allowed; see ulimit -n");
        }
        if is(Errno::NOMEM) {
            return Some("there is no memory for one more process");
        }
    }
    let _ = error;
    None
}

/// A program in the folders of PATH.
fn find(program: &OsStr) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The interpreter that the first line of a script names.
fn interpreter(file: &Path) -> Option<String> {
    let mut start = Vec::new();
    File::open(file).ok()?.take(FIRST_LINE_MAX).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    // A carriage return belongs to the name, as the system sees it.
    let line = String::from_utf8_lossy(line).replace('\r', "\\r");
    Some(line.split_whitespace().next()?.to_owned())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    /// What is said of a file with this text and mode.
    fn said(text: &str, mode: u32) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("train");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        of(file.as_os_str())
    }

    fn of(program: &OsStr) -> String {
        why_not_started(program, None, Command::new(program).spawn().unwrap_err()).to_string()
    }

    #[test]
    fn what_there_are_too_few_of_is_named() {
        use rustix::io::Errno;
        for (errno, what) in
            [(Errno::AGAIN, "ulimit -u"), (Errno::MFILE, "ulimit -n"), (Errno::NOMEM, "no memory")]
        {
            let said = why_not_started(OsStr::new("sh"), None, errno.into()).to_string();
            assert!(said.starts_with("starting sh") && said.contains(what), "{said}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let script = said("#!/no/such/python -u\nprint()\n", 0o755);
        assert!(script.starts_with("the interpreter /no/such/python of /"), "{script}");
        assert!(script.contains("the first line of"), "{script}");
        let windows = said("#!/bin/sh\r\necho\r\n", 0o755);
        assert!(windows.starts_with("the interpreter /bin/sh\\r of /"), "{windows}");
        let folder = tempfile::tempdir().unwrap();
        let folder = of(folder.path().as_os_str());
        assert!(folder.contains("it is a folder, not a program"), "{folder}");
        assert!(said("echo", 0o644).contains("chmod +x /"));
        assert_eq!(of(OsStr::new("/no/such")), "program /no/such is not available (tried: that path)");
        let nowhere = of(OsStr::new("no_such_program"));
        assert_eq!(nowhere, "program no_such_program is not available (tried: the folders of PATH)");
        // One that lies in the ranks' folder is not looked for there.
        let here = tempfile::tempdir().unwrap();
        std::fs::write(here.path().join("no_such_program"), "").unwrap();
        let error = io::Error::from(ErrorKind::NotFound);
        let error = why_not_started(OsStr::new("no_such_program"), Some(here.path()), error).to_string();
        assert!(
            error.ends_with("the folders of PATH; the one that is here is ./no_such_program)"),
            "{error}"
        );
    }
}

//! Reads what `crates/nccl/src/sys` says of a C library: functions in tables, and types and constants whose docs begin with their name in C.

/// One of its files.
#[derive(Debug, Default)]
pub(super) struct Sys {
    pub(super) aliases: Vec<Item>,
    pub(super) constants: Vec<Item>,
    pub(super) structs: Vec<Struct>,
    pub(super) functions: Vec<Function>,
}

/// `type NAME = IS`, or `const NAME: … = IS`.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) name: String,
    pub(super) c: Named,
    pub(super) is: String,
}

/// How C calls it.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) since: Option<Version>,
}

#[derive(Debug)]
pub(super) struct Struct {
    pub(super) name: String,
    pub(super) c: Named,
    /// Their names and types; of a tuple's one field the name is empty.
    pub(super) fields: Vec<(String, String)>,
}

#[derive(Debug)]
pub(super) struct Function {
    pub(super) symbol: String,
    /// Of those that are optional.
    pub(super) since: Option<Version>,
    pub(super) args: Vec<String>,
    pub(super) ret: String,
}

/// Major, minor, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) [u32; 3]);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

impl Version {
    /// From `NCCL 2.18` or `CUDA 12.8`.
    fn read(text: &str) -> Option<Self> {
        let mut numbers = text.split_once(' ')?.1.split('.').map(|number| number.parse().ok());
        let mut next = || numbers.next().unwrap_or(Some(0));
        Some(Self([next()?, next()?, next()?]))
    }
}

impl Sys {
    /// Nothing is passed over: what is not understood is an error with its line.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut sys = Self::default();
        let mut doc = None;
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let lost = || format!("cannot read this line of sys: {line}");
            let item = line.strip_prefix("pub(crate) ").unwrap_or(line);
            let mut c = || doc.take().and_then(named).ok_or_else(|| format!("no name in C before: {line}"));
            if let Some(text) = line.strip_prefix("/// ") {
                doc = doc.or(Some(text));
                continue;
            } else if let Some((name, is)) = between(item, "type ", " = ", ";") {
                sys.aliases.push(Item { name: name.into(), c: c()?, is: is.into() });
            } else if let Some((head, is)) = between(item, "const ", " = ", ";") {
                let (name, _) = head.split_once(": ").ok_or_else(lost)?;
                sys.constants.push(Item { name: name.into(), c: c()?, is: is.replace('_', "") });
            } else if let Some((name, field)) = between(item, "struct ", "(", ");") {
                let fields = vec![(String::new(), plain(field).to_owned())];
                sys.structs.push(Struct { name: name.into(), c: c()?, fields });
            } else if let Some(name) = item.strip_prefix("struct ") {
                let name = name.strip_suffix(" {").ok_or_else(lost)?.to_owned();
                let fields = lines.by_ref().take_while(|line| *line != "}");
                let fields = fields.map(|field| {
                    let (name, is) = plain(field).split_once(": ")?;
                    Some((name.to_owned(), is.strip_suffix(',')?.to_owned()))
                });
                let fields = fields.collect::<Option<_>>().ok_or_else(lost)?;
                sys.structs.push(Struct { name, c: c()?, fields });
            } else if line == "table! {" {
                for line in lines.by_ref().take_while(|line| *line != "}") {
                    sys.functions.extend(function(line)?);
                }
            } else if ["const ", "static ", "type ", "enum ", "union "].iter().any(|is| item.starts_with(is))
            {
                return Err(lost());
            }
            if !line.starts_with("#[") {
                doc = None;
            }
        }
        Ok(sys)
    }
}

/// `HEAD name MIDDLE rest TAIL`.
fn between<'a>(line: &'a str, head: &str, middle: &str, tail: &str) -> Option<(&'a str, &'a str)> {
    line.strip_prefix(head)?.strip_suffix(tail)?.split_once(middle)
}

fn plain(field: &str) -> &str {
    field.trim().trim_start_matches("pub(crate) ")
}

/// What a doc says that begins with a name in backticks, and perhaps `since`.
fn named(doc: &str) -> Option<Named> {
    let (name, rest) = doc.strip_prefix('`')?.split_once('`')?;
    let since = rest.strip_prefix(", since ").map(|since| since.trim_end_matches('.'));
    let since = since.map(|since| Version::read(since.split_once(':').map_or(since, |(since, _)| since)));
    Some(Named { name: name.into(), since: if let Some(since) = since { Some(since?) } else { None } })
}

/// A line of a table, which is a function or belongs to its frame.
fn function(line: &str) -> Result<Option<Function>, String> {
    let line = line.trim();
    if line.starts_with("//") || matches!(line, "" | "needed {" | "optional {" | "}") || !line.contains(' ') {
        return Ok(None);
    }
    let parts = || {
        let (_, rest) = line.split_once(" = \"")?;
        let (symbol, rest) = rest.split_once('"')?;
        let (since, rest) = rest.split_once(": fn(")?;
        let since = since.strip_prefix(" since \"").and_then(|since| since.strip_suffix('"'));
        let since = if let Some(since) = since { Some(Version::read(since)?) } else { None };
        let (args, ret) = rest.split_once(") -> ")?;
        let args = args.split(", ").filter(|arg| !arg.is_empty()).map(str::to_owned).collect();
        Some(Function { symbol: symbol.into(), since, args, ret: ret.strip_suffix(';')?.into() })
    };
    parts().map(Some).ok_or_else(|| format!("cannot read this line of a table in sys: {line}"))
}

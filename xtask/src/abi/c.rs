//! Writes what sys says as static assertions in C.

use super::sys::{Item, Struct, Sys, Version};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

/// What a header has.
#[derive(Debug)]
pub(super) struct Header {
    /// `NCCL 2.21.5`, say.
    pub(super) name: String,
    pub(super) version: Version,
    /// Names before a parenthesis, after the preprocessor.
    pub(super) functions: HashSet<String>,
}

/// How C calls the types of Rust.
#[derive(Debug, Clone)]
pub(super) struct Types(HashMap<String, String>);

impl Types {
    /// The primitive ones.
    pub(super) fn primitive() -> Self {
        let all = [
            ("c_int", "int"),
            ("c_uint", "unsigned int"),
            ("c_char", "char"),
            ("c_void", "void"),
            ("usize", "size_t"),
            ("u8", "unsigned char"),
            ("u32", "unsigned int"),
            ("u64", "unsigned long long"),
            ("f32", "float"),
        ];
        Self(all.into_iter().map(|(rust, c)| (rust.into(), c.into())).collect())
    }

    /// With those that `sys` names.
    pub(super) fn with(&self, sys: &Sys) -> Self {
        let mut all = self.0.clone();
        let aliases = sys.aliases.iter().map(|alias| (&alias.name, &alias.c.name));
        let structs = sys.structs.iter().map(|it| (&it.name, &it.c.name));
        all.extend(aliases.chain(structs).map(|(rust, c)| (rust.clone(), c.clone())));
        Self(all)
    }

    fn of(&self, rust: &str) -> Result<String, String> {
        if let Some(to) = rust.strip_prefix("*const ") {
            return Ok(format!("{} const *", self.of(to)?));
        }
        if let Some(to) = rust.strip_prefix("*mut ") {
            return Ok(format!("{} *", self.of(to)?));
        }
        if let Some((of, len)) =
            rust.strip_prefix('[').and_then(|array| array.strip_suffix(']')?.split_once("; "))
        {
            return Ok(format!("{} [{len}]", self.of(of)?));
        }
        self.0.get(rust).cloned().ok_or_else(|| format!("sys uses {rust}, which has no name in C"))
    }
}

/// Assertions about `sys` for a program that includes the header, and what can be seen without compiling them.
pub(super) fn assertions(sys: &Sys, types: &Types, header: &Header) -> Result<(String, Vec<String>), String> {
    let (mut program, mut findings) = (String::new(), Vec::new());
    let has = |since: Option<Version>| since.is_none_or(|since| since <= header.version);
    for alias in sys.aliases.iter().filter(|alias| has(alias.c.since)) {
        self::alias(&mut program, alias, types)?;
    }
    for (n, constant) in sys.constants.iter().enumerate().filter(|(_, it)| has(it.c.since)) {
        let Item { c, is, name } = constant;
        // Some are constant only for the optimizer, so the compiler complains of a call that it could not leave out.
        let what = format!("{} is not {name} = {is}", c.name);
        let _ = writeln!(
            program,
            "void constant_{n}(void) {{ extern void differs_{n}(void) __attribute__((error({what:?}))); if ((long long)({}) != {is}) differs_{n}(); }}",
            c.name
        );
    }
    for it in sys.structs.iter().filter(|it| has(it.c.since)) {
        structure(&mut program, it, types)?;
    }
    for function in &sys.functions {
        let (symbol, header_name) = (&function.symbol, &header.name);
        match (header.functions.contains(symbol), function.since) {
            (false, None) => findings.push(format!("{symbol} is needed, but {header_name} has none")),
            (false, Some(since)) if since <= header.version => {
                findings.push(format!("{symbol} came with {since}, sys says, but {header_name} has none"));
            }
            (false, Some(_)) => {}
            (true, Some(since)) if since > header.version => {
                findings.push(format!("{symbol} came with {since}, sys says, but {header_name} has it"));
            }
            (true, _) => {
                let args = function.args.iter().map(|arg| types.of(arg)).collect::<Result<Vec<_>, _>>()?;
                let args = if args.is_empty() { "void".into() } else { args.join(", ") };
                let signature = format!("{} (*)({args})", types.of(&function.ret)?);
                let same = format!("__builtin_types_compatible_p(__typeof__(&{symbol}), {signature})");
                assert(&mut program, &same, &format!("{symbol} is not a {signature}"));
            }
        }
    }
    Ok((program, findings))
}

fn alias(program: &mut String, alias: &Item, types: &Types) -> Result<(), String> {
    let (c, is) = (&alias.c.name, types.of(&alias.is)?);
    assert(program, &format!("sizeof({c}) == sizeof({is})"), &format!("{c} has not the size of {is}"));
    if !is.ends_with(']') {
        // Pointers, integers and structs go other ways into a function.
        let class = |of: &str| format!("__builtin_classify_type(*({of} *)0)");
        assert(program, &format!("{} == {}", class(c), class(&is)), &format!("{c} is not a kind of {is}"));
    }
    Ok(())
}

/// A struct that begins with its own size may have grown at its end.
fn structure(program: &mut String, it: &Struct, types: &Types) -> Result<(), String> {
    let (c, mirror) = (&it.c.name, format!("struct rust_{}", it.name));
    let mut fields = String::new();
    for (name, is) in &it.fields {
        let name = if name.is_empty() { "first" } else { name };
        let is = types.of(is)?;
        let (is, len) = is.split_once('[').map_or((&*is, String::new()), |(is, len)| (is, format!("[{len}")));
        let _ = write!(fields, "{is} {name}{len}; ");
    }
    let _ = writeln!(program, "{mirror} {{ {fields}}};");
    let may_grow = it.fields.first().is_some_and(|(name, _)| name == "size");
    let compare = if may_grow { ">=" } else { "==" };
    let size = format!("sizeof({c}) {compare} sizeof({mirror})");
    assert(program, &size, &format!("{c} has not the size of {}", it.name));
    let align = format!("_Alignof({c}) == _Alignof({mirror})");
    assert(program, &align, &format!("{c} is not aligned as {}", it.name));
    for (name, _) in it.fields.iter().filter(|(name, _)| !name.is_empty()) {
        for (what, same) in [
            ("stands elsewhere", format!("offsetof({c}, {name}) == offsetof({mirror}, {name})")),
            ("has another size", format!("sizeof((({c} *)0)->{name}) == sizeof((({mirror} *)0)->{name})")),
        ] {
            assert(program, &same, &format!("{name} of {c} {what} than that of {}", it.name));
        }
    }
    Ok(())
}

fn assert(program: &mut String, condition: &str, otherwise: &str) {
    let _ = writeln!(program, "_Static_assert({condition}, {otherwise:?});");
}

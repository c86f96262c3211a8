//! A table of C functions, read from a library at run time.

use phalanx_core::{Error, Result};
use std::fmt::Display;

/// A function that not every version of its library has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Optional<F> {
    pub(crate) symbol: &'static str,
    /// The first version that has it.
    pub(crate) since: &'static str,
    pub(crate) function: Option<F>,
}

impl<F: Copy> Optional<F> {
    /// The function, or which version of `library` would have it.
    pub(crate) fn of(&self, library: &impl Display) -> Result<F> {
        self.function.ok_or_else(|| Error::Unavailable {
            what: format!("{}, which came with {},", self.symbol, self.since),
            tried: library.to_string(),
        })
    }
}

/// Defines a struct of function pointers with `read`, which looks all of them up. Of those that are needed it tells which are missing.
macro_rules! table {
    (
        $(#[$doc:meta])* $name:ident;
        needed { $($field:ident = $symbol:literal: fn($($arg:ty),* $(,)?) -> $ret:ty;)* }
        optional { $($ofield:ident = $osymbol:literal since $since:literal: fn($($oarg:ty),* $(,)?) -> $oret:ty;)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> $ret,)*
            $(pub(crate) $ofield: $crate::sys::Optional<unsafe extern "C" fn($($oarg),*) -> $oret>,)*
        }

        impl $name {
            /// The table of `library`, or the names that it lacks.
            ///
            /// # Safety
            /// Functions of these names in `library` have these types.
            pub(crate) unsafe fn read(library: &libloading::Library) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: the caller vouches for the type.
                    let $field = unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> $ret>($symbol) };
                    if $field.is_err() {
                        missing.push($symbol);
                    }
                )*
                $(
                    // SAFETY: the caller vouches for the type.
                    let $ofield = unsafe { library.get::<unsafe extern "C" fn($($oarg),*) -> $oret>($osymbol) };
                )*
                match ($($field,)*) {
                    ($(Ok($field),)*) => Ok(Self {
                        $($field: *$field,)*
                        $($ofield: $crate::sys::Optional {
                            symbol: $osymbol,
                            since: $since,
                            function: $ofield.ok().map(|f| *f),
                        },)*
                    }),
                    _ => Err(missing),
                }
            }
        }
    };
}

pub(crate) use table;

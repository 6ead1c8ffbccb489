//! The parts that the conformance suites of all ports share: a case, and the macro that lists the cases of a suite.
//!
//! A suite is a crate `<port>-conformance`. It has a trait `Subject`, which an engine implements in its own tests, and a
//! macro made by [`suite!`], which makes a `#[test]` of every case:
//!
//! ```text
//! port_conformance::conformance_tests!(run);
//!
//! fn run(case: Case) {
//!     executor.block_on(async { case.run(&MySubject::new()).await })
//! }
//! ```
//!
//! The engine chooses the executor. A case with several calls under way polls them together, from one task.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use runtime::Runtime;

/// One promise that an engine makes which is an `S`.
pub struct Case<S: ?Sized + 'static> {
    /// A sentence, its words joined by `_`.
    pub name: &'static str,
    pub body: for<'a> fn(&'a S) -> LocalBoxFuture<'a, ()>,
}

impl<S: ?Sized> Clone for Case<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: ?Sized> Copy for Case<S> {}

impl<S: ?Sized> Case<S> {
    /// Runs the case on a subject of its own.
    ///
    /// # Panics
    /// If the engine breaks the promise.
    pub async fn run(&self, subject: &S) {
        (self.body)(subject).await;
    }
}

/// The wait between two looks of [`until`].
const PERIOD: Duration = Duration::from_millis(5);

/// Looks until `is_so`.
///
/// # Panics
/// If it is not so within 20 seconds.
pub async fn until(runtime: &Runtime, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !is_so().await {
            runtime.sleep(PERIOD).await;
        }
    };
    let limit = Duration::from_secs(20);
    runtime.timeout(limit, looking).await.unwrap_or_else(|| panic!("it never came: {what}"));
}

/// Makes `CASES` and an exported macro of one list of cases, so that no case is in one and not in the other.
///
/// `suite! { $ dyn Subject, macro_name, [$crate::path]; module { case case } }`: the `$` is for the macro that this macro
/// makes, and the path is that of the module with the invocation, as the users of the made macro see it.
#[macro_export]
macro_rules! suite {
    ($dollar:tt $subject:ty, $tests:ident, [$($suite:tt)+]; $($module:ident { $($name:ident)* })*) => {
        /// Every promise.
        pub const CASES: &[$crate::Case<$subject>] = &[
            $($($crate::Case { name: stringify!($name), body: |subject| Box::pin($module::$name(subject)) },)*)*
        ];

        /// Returns the case of this name.
        ///
        /// # Panics
        /// If there is none.
        #[must_use]
        pub fn case(name: &str) -> $crate::Case<$subject> {
            *CASES.iter().find(|case| case.name == name).expect("the suite has a case of this name")
        }

        /// A `#[test]` of every case of this suite, each of which calls the function given with the case.
        #[macro_export]
        macro_rules! $tests {
            ($dollar run:path) => {
                use $($suite)+::case;
                $($(
                    #[test]
                    fn $name() {
                        $dollar run(case(stringify!($name)));
                    }
                )*)*
            };
        }
    };
}

//! Shared parts of the conformance suites of all ports: a test case, and the macro that lists the cases of a suite.
//!
//! A suite is a crate `<port>-conformance`. It has a trait `Subject`. Each engine of the port implements this trait in
//! its own tests. The macro [`suite!`] creates another macro, which turns every case into a `#[test]`:
//!
//! ```text
//! port_conformance::conformance_tests!(run);
//!
//! fn run(case: Case) {
//!     executor.block_on(async { case.run(&MySubject::new()).await })
//! }
//! ```
//!
//! The engine's tests choose the executor. If a case makes several calls at the same time, one task polls all of them.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use runtime::Runtime;

/// Test case for one promise of a port. `S` is the trait `Subject` of the suite.
pub struct Case<S: ?Sized + 'static> {
    /// Name of the promise: a sentence whose words are joined by `_`.
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
    /// Runs the case on `subject`, which no other case uses.
    ///
    /// # Panics
    /// Panics if the engine breaks the promise.
    pub async fn run(&self, subject: &S) {
        (self.body)(subject).await;
    }
}

/// Interval between two checks of [`until`].
const PERIOD: Duration = Duration::from_millis(5);

/// Polls `is_so` until it returns true.
///
/// # Panics
/// Panics if `is_so` does not return true within 20 seconds.
pub async fn until(runtime: &Runtime, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !is_so().await {
            runtime.sleep(PERIOD).await;
        }
    };
    let limit = Duration::from_secs(20);
    runtime.timeout(limit, looking).await.unwrap_or_else(|| panic!("condition did not hold within 20 seconds: {what}"));
}

/// Creates `CASES` and an exported macro from one list of cases, so that `CASES` and the macro contain the same cases.
///
/// An invocation has the form `suite! { $ dyn Subject, macro_name, [$crate::path]; module { case case } }`. The created
/// macro needs the token `$`. The path in brackets is the path of the module that invokes `suite!`. Users of the
/// created macro must be able to resolve this path.
#[macro_export]
macro_rules! suite {
    ($dollar:tt $subject:ty, $tests:ident, [$($suite:tt)+]; $($module:ident { $($name:ident)* })*) => {
        /// All cases of the suite.
        pub const CASES: &[$crate::Case<$subject>] = &[
            $($($crate::Case { name: stringify!($name), body: |subject| Box::pin($module::$name(subject)) },)*)*
        ];

        /// Returns the case with this name.
        ///
        /// # Panics
        /// Panics if the suite has no such case.
        #[must_use]
        pub fn case(name: &str) -> $crate::Case<$subject> {
            *CASES.iter().find(|case| case.name == name).expect("the suite has a case with this name")
        }

        /// Creates a `#[test]` for every case of this suite. The test calls the given function with the case.
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

// The doctest main of every test program: unit tests, API tests and model tests. The programs differ only in what they link.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

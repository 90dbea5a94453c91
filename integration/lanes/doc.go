// Command lanes runs lanes of tests and compares what ran with what is
// expected to run.
//
//	go run ./integration/lanes [-race LANE,…] [-add] [-whole] unit|engine|crash|e2e|vm …
//
// The unit lane is every test without a build tag; another lane is exactly the
// tests in files with its tag. What must run stands in
// integration/lanes/<lane>.txt, one row a line:
//
//	protocol/uds TestHandover
//	skip protocol/uds TestSomething: why this machine or release cannot run it
//	sampled integration/crash TestMatrix/kill/accepted
//
// Rows of the unit lane are top-level tests; rows of the others are subtests
// too, because their rows are matrices. A listed row that did not run, a test
// that ran without being listed, a skip that is not listed as one and a lane
// without tests all fail the lane. -add rewrites the list from what ran.
//
// Of sampled rows a run takes a part, which QUITTANCE_SAMPLE names: a number
// that the commit decides unless it is given. With -whole every row must run.
//
// The last line is a plain count: "N passed, N failed".
//
// It knows nothing of what the tests test.
package main

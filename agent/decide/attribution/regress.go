// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A small linear regression with coefficients that are not negative, and what it is worth: how far each coefficient can be
// wrong, and how well the columns can be told apart.

package attribution

import "math"

// Bounds of the solver. It is for some sixteen columns.
const (
	ridge      = 1e-9 // relative, on the diagonal: columns that are the same have an answer
	slopeLeast = 1e-9 // relative, below which a column would explain nothing more
	turnsMost  = 30   // of Jacobi's method
	smallest   = 1e-12
)

// normal is the normal equations of a regression: gram times coefficients is target. Rows are weighted.
type normal struct {
	size   int
	gram   []float64 // size × size, symmetric
	target []float64
	square float64 // of the observed values, weighted
	weight float64
	rows   int
}

func newNormal(size int) *normal {
	return &normal{size: size, gram: make([]float64, size*size), target: make([]float64, size)}
}

// add takes in a row.
func (n *normal) add(row []float64, value, weight float64) {
	for i, x := range row {
		if x == 0 {
			continue
		}
		n.target[i] += weight * x * value
		for j := i; j < n.size; j++ {
			n.gram[i*n.size+j] += weight * x * row[j]
		}
	}
	n.square += weight * value * value
	n.weight += weight
	n.rows++
}

// mirror fills the lower half in, after the last row.
func (n *normal) mirror() {
	for i := range n.size {
		for j := range i {
			n.gram[i*n.size+j] = n.gram[j*n.size+i]
		}
	}
}

// expect adds that a coefficient is about so much, with the weight of so many rows in which its column is one.
func (n *normal) expect(i int, value, weight float64) {
	n.gram[i*n.size+i] += weight
	n.target[i] += weight * value
	n.square += weight * value * value
}

// clone copies it.
func (n *normal) clone() *normal {
	next := *n
	next.gram, next.target = append([]float64(nil), n.gram...), append([]float64(nil), n.target...)
	return &next
}

// solve finds the coefficients, none negative, with the least squares: by the method of Lawson and Hanson, on the normal
// equations. Columns that are the same share what they explain.
func (n *normal) solve() []float64 {
	found := make([]float64, n.size)
	free := make([]bool, n.size) // the others are zero
	for i := range free {
		free[i] = n.gram[i*n.size+i] > smallest
	}
	room := make([]float64, n.size*(n.size+1))
	if tried := n.solveFree(free, room); !anyNegative(tried) {
		copy(found, tried)
		return found
	}
	clear(free)
	for range 3 * n.size {
		next := n.steepest(found, free)
		if next < 0 {
			break
		}
		free[next] = true
		for range n.size + 1 {
			tried := n.solveFree(free, room)
			if !anyNegative(tried) {
				copy(found, tried)
				break
			}
			retreat(found, tried, free)
		}
	}
	return found
}

// steepest is the column that is not free and would explain most if it were; -1: none would anything.
func (n *normal) steepest(found []float64, free []bool) int {
	best, most := -1, 0.0
	for i := range n.size {
		diagonal := n.gram[i*n.size+i]
		if free[i] || diagonal <= smallest {
			continue
		}
		slope := n.target[i]
		for j, coefficient := range found {
			slope -= n.gram[i*n.size+j] * coefficient
		}
		if slope > slopeLeast*diagonal && slope > most {
			best, most = i, slope
		}
	}
	return best
}

// retreat goes from found towards tried as far as nothing becomes negative. What becomes zero is not free any more.
func retreat(found, tried []float64, free []bool) {
	part := 1.0
	for i, is := range free {
		if is && tried[i] < 0 {
			part = min(part, found[i]/(found[i]-tried[i]))
		}
	}
	for i, is := range free {
		if !is {
			continue
		}
		was := tried[i] < 0
		found[i] = max(0, found[i]+part*(tried[i]-found[i]))
		if was && found[i] <= smallest {
			found[i], free[i] = 0, false
		}
	}
}

func anyNegative(values []float64) bool {
	for _, value := range values {
		if value < 0 {
			return true
		}
	}
	return false
}

// solveFree solves for the free columns alone. room is for size × (size + 1) numbers; the answer is in it.
func (n *normal) solveFree(free []bool, room []float64) []float64 {
	size := n.size
	lower, answer := room[:size*size], room[size*size:]
	for i := range size {
		answer[i] = 0
		if !free[i] {
			continue
		}
		for j := range i + 1 {
			if !free[j] {
				continue
			}
			sum := n.gram[i*size+j]
			if i == j {
				sum *= 1 + ridge
			}
			for k := range j {
				if free[k] {
					sum -= lower[i*size+k] * lower[j*size+k]
				}
			}
			if i == j {
				lower[i*size+i] = math.Sqrt(max(sum, ridge*n.gram[i*size+i]))
			} else {
				lower[i*size+j] = sum / lower[j*size+j]
			}
		}
		sum := n.target[i]
		for k := range i {
			if free[k] {
				sum -= lower[i*size+k] * answer[k]
			}
		}
		answer[i] = sum / lower[i*size+i]
	}
	for i := size - 1; i >= 0; i-- {
		if !free[i] {
			continue
		}
		sum := answer[i]
		for k := i + 1; k < size; k++ {
			if free[k] {
				sum -= lower[k*size+i] * answer[k]
			}
		}
		answer[i] = sum / lower[i*size+i]
	}
	return answer
}

// residual is the weighted sum of squares that coefficients leave.
func (n *normal) residual(coefficients []float64) float64 {
	sum := n.square
	for i, a := range coefficients {
		sum -= 2 * a * n.target[i]
		for j, b := range coefficients {
			sum += a * b * n.gram[i*n.size+j]
		}
	}
	return max(0, sum)
}

// inverse inverts the matrix; ok is false where it has none.
func (n *normal) inverse() (inverse []float64, ok bool) {
	size := n.size
	lower := make([]float64, size*size)
	for i := range size {
		for j := range i + 1 {
			sum := n.gram[i*size+j]
			for k := range j {
				sum -= lower[i*size+k] * lower[j*size+k]
			}
			if i != j {
				lower[i*size+j] = sum / lower[j*size+j]
				continue
			}
			if sum <= smallest*max(1, n.gram[i*size+i]) {
				return nil, false
			}
			lower[i*size+i] = math.Sqrt(sum)
		}
	}
	inverse = make([]float64, size*size)
	column := make([]float64, size)
	for c := range size {
		for i := range size {
			sum := 0.0
			if i == c {
				sum = 1
			}
			for k := range i {
				sum -= lower[i*size+k] * column[k]
			}
			column[i] = sum / lower[i*size+i]
		}
		for i := size - 1; i >= 0; i-- {
			sum := column[i]
			for k := i + 1; k < size; k++ {
				sum -= lower[k*size+i] * column[k]
			}
			column[i] = sum / lower[i*size+i]
		}
		for i := range size {
			inverse[i*size+c] = column[i]
		}
	}
	return inverse, true
}

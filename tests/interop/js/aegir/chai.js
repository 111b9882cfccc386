// What the suite takes of aegir, its authors' build tool of a thousand packages: chai, with these
// plugins in this order (aegir 47.0.22, `utils/chai.js`).

import chai from 'chai'
import chaiAsPromised from 'chai-as-promised'
import chaiBites from 'chai-bites'
import chaiParentheses from 'chai-parentheses'

chai.use(chaiAsPromised)
chai.use(chaiParentheses)
chai.use(chaiBites)

export const expect = chai.expect
